//! `has(plan)`: whether a request has an attribute. CEL's own `has` accepts only fields of maps. So the name is respelled
//! before the parser sees it, and a macro turns the call into a variable that is resolved for each request.

use cel::common::ast::{Expr, IdedExpr};
use cel::parser::Macro;

use super::analysis::dotted;

/// The name of `has` for the parser. It has the same length, so that positions in messages stay correct.
pub(super) const SPELLED: &str = "hAs";
/// The prefix of variables for the presence of an attribute. No name in an expression can begin with it.
const PREFIX: &str = "@has:";

/// The macro for `has(plan)`.
pub(super) fn expansion() -> Macro {
    Macro::global(SPELLED, 1, |expander, _, arguments| {
        let argument = arguments.pop().unwrap_or_default();
        match dotted(&argument) {
            Some(name) => Ok(Some(expander.next_expr(Expr::Ident(format!("{PREFIX}{name}"))))),
            None => Err(expander.new_error(argument.id, "has() asks for an attribute, such as has(plan)")),
        }
    })
}

/// The attribute whose presence a variable stands for.
pub(super) fn of_variable(variable: &str) -> Option<&str> {
    variable.strip_prefix(PREFIX)
}

/// The attribute of an expression that is a single `has`.
pub(super) fn asked(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Ident(name) => of_variable(name),
        _ => None,
    }
}

/// The source with every call of `has` respelled. Literals and comments stay unchanged.
pub(super) fn spell(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut spelled = source.to_owned();
    let (mut at, mut before) = (0, b' ');
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let length = match byte {
            b'/' if rest.starts_with(b"//") => rest.iter().take_while(|&&byte| byte != b'\n').count(),
            b'"' | b'\'' => text_length(rest, Escapes::Counted),
            _ if is_word(byte) => {
                let word = rest.iter().take_while(|&&byte| is_word(byte)).count();
                let (word, after) = rest.split_at(word);
                let calls = after.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'(');
                if word == b"has" && before != b'.' && calls {
                    spelled.replace_range(at..at + word.len(), SPELLED);
                }
                let is_raw = [&b"r"[..], b"br", b"rb"].iter().any(|raw| word.eq_ignore_ascii_case(raw));
                match after.first() {
                    Some(b'"' | b'\'') if is_raw => word.len() + text_length(after, Escapes::None),
                    _ => word.len(),
                }
            }
            _ => 1,
        };
        if !byte.is_ascii_whitespace() {
            before = byte;
        }
        at += length;
    }
    spelled
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a backslash escapes the next character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    Counted,
    None,
}

/// The length of the literal that starts here, with its single or triple quotes.
fn text_length(rest: &[u8], escapes: Escapes) -> usize {
    let quote = &rest[..1];
    let tripled = quote.repeat(3);
    let quote = if rest.starts_with(&tripled) { tripled.as_slice() } else { quote };
    let mut at = quote.len();
    while at < rest.len() && !rest[at..].starts_with(quote) {
        at += if rest[at] == b'\\' && escapes == Escapes::Counted { 2 } else { 1 };
    }
    (at + quote.len()).min(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only calls are respelled, and no position changes.
    #[test]
    fn only_calls_are_spelled_otherwise() {
        for (source, wanted) in [
            ("has(a)", "hAs(a)"),
            ("!has (a) || has\n(b)", "!hAs (a) || hAs\n(b)"),
            ("has == 'x' && hash(a) && x_has(a) && 1has(a)", "has == 'x' && hash(a) && x_has(a) && 1has(a)"),
            ("a.has(b) && a . has(b)", "a.has(b) && a . has(b)"),
            (r#"a == 'has(b)' && has(c)"#, r#"a == 'has(b)' && hAs(c)"#),
            (r#"a == "it's has(b)" && has(c)"#, r#"a == "it's has(b)" && hAs(c)"#),
            (r"a == '\' has(b)' && has(c)", r"a == '\' has(b)' && hAs(c)"),
            (r"a == r'\' && has(c)", r"a == r'\' && hAs(c)"),
            (r"a in['x']&&'x'in['\'has(b)']&&has(c)", r"a in['x']&&'x'in['\'has(b)']&&hAs(c)"),
            (r"a == b'\'has(b)' && has(c)", r"a == b'\'has(b)' && hAs(c)"),
            (r#"a == """ "has(b)" """ && has(c)"#, r#"a == """ "has(b)" """ && hAs(c)"#),
            ("a // has(b)\n && has(c)", "a // has(b)\n && hAs(c)"),
            ("'é' == a && has(c)", "'é' == a && hAs(c)"),
            ("'has(", "'has("),
            ("has", "has"),
        ] {
            assert_eq!(spell(source), wanted);
        }
    }
}
