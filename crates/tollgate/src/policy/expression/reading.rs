//! How an expression reads an attribute that it compares with a literal: as text, as a number, or as the client that an
//! address counts as. The meaning of a condition must not depend on the protocol, which may carry only text, or on the
//! spelling of an address. Literals that no attribute of their kind can have are reported.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{analysis, pattern};
use crate::policy::exact::{self, SearchKind};
use crate::policy::finding::{Problem, Severity, quoted};
use crate::policy::vocabulary::{Kind, Vocabulary};

/// How an attribute is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAs {
    /// As text; a number in decimal.
    Text,
    /// As a number, if it is one or the text of one.
    Number,
    /// As the client that an address counts as.
    Client,
}

/// The prefixes of variables that are read in each way. No name in an expression can begin with them.
const VARIABLES: [(&str, ReadAs); 3] =
    [("@text:", ReadAs::Text), ("@number:", ReadAs::Number), ("@client:", ReadAs::Client)];
const COMPARISONS: [&str; 6] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
];
const ARITHMETIC: [&str; 5] =
    [operators::ADD, operators::SUBSTRACT, operators::MULTIPLY, operators::DIVIDE, operators::MODULO];

/// The attribute of a variable with such a prefix, and how it is read.
pub(super) fn of_variable(variable: &str) -> Option<(&str, ReadAs)> {
    VARIABLES.iter().find_map(|(prefix, read)| Some((variable.strip_prefix(prefix)?, *read)))
}

/// Resolves how an expression reads its attributes, and reports literals that none of them can have.
pub(super) fn settle(expression: &mut IdedExpr, vocabulary: &Vocabulary) -> Vec<(Severity, Problem)> {
    let mut settling = Settling { vocabulary, bound: Vec::new(), found: Vec::new() };
    settling.walk(expression);
    settling.found
}

struct Settling<'v> {
    vocabulary: &'v Vocabulary,
    /// Names that enclosing macros bind.
    bound: Vec<String>,
    found: Vec<(Severity, Problem)>,
}

impl Settling<'_> {
    fn walk(&mut self, expression: &mut IdedExpr) {
        let depth = self.bound.len();
        match &mut expression.expr {
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(inner) => {
                self.bound.push(inner.iter_var.clone());
                self.bound.extend(inner.iter_var2.clone());
                self.bound.push(inner.accu_var.clone());
            }
            _ => {}
        }
        analysis::children_mut(expression).into_iter().for_each(|child| self.walk(child));
        self.bound.truncate(depth);
    }

    fn call(&mut self, call: &mut CallExpr) {
        let function = call.func_name.as_str();
        match (&mut call.target, call.args.as_mut_slice()) {
            (None, [left, right]) if COMPARISONS.contains(&function) => {
                self.null(function, left, right);
                self.beside(left, std::slice::from_ref(&*right));
                self.beside(right, std::slice::from_ref(&*left));
            }
            (None, [left, right]) if ARITHMETIC.contains(&function) => {
                if is_number(left) {
                    self.as_number(right);
                } else if is_number(right) {
                    self.as_number(left);
                }
            }
            (None, [left, right]) if function == operators::IN => {
                if let Expr::List(list) = &right.expr {
                    if list.elements.is_empty() {
                        let problem = Problem::new("an empty list never matches", "at least one value");
                        self.found.push((Severity::Error, problem));
                    }
                    self.beside(left, &list.elements);
                } else {
                    self.in_text(left, right);
                }
            }
            (None, [target, key]) if function == operators::INDEX => self.index(target, key),
            (Some(target), [text]) => self.part(function, target, text),
            (None, [target, text]) => self.part(function, target, text),
            _ => {}
        }
    }

    /// `plan == null`: no attribute is.
    fn null(&mut self, function: &str, left: &IdedExpr, right: &IdedExpr) {
        let is_null = |side: &IdedExpr| matches!(side.expr, Expr::Literal(LiteralValue::Null));
        let name = match (self.attribute(left), self.attribute(right)) {
            (Some(name), None) if is_null(right) => name,
            (None, Some(name)) if is_null(left) => name,
            _ => return,
        };
        let accepted =
            if function == operators::NOT_EQUALS { format!("has({name})") } else { format!("!has({name})") };
        let message = format!("no attribute is null, so {} never is", quoted(&name));
        self.found.push((Severity::Error, Problem::new(message, accepted)));
    }

    /// `ip in '10.0.0.0/8'`, `'/v1' in path`: a text is no list.
    fn in_text(&mut self, left: &IdedExpr, right: &IdedExpr) {
        let literal = |text: &str| format!("'{}'", quoted(text).replace('\\', "\\\\").replace('\'', "\\'"));
        let accepted = match (self.attribute(left), text_of(left), self.attribute(right), text_of(right)) {
            (Some(name), _, _, Some(text)) if self.vocabulary.kind(&name) == Kind::Address => {
                format!("a table such as `when: {{ {}: {} }}`", quoted(&name), quoted(text))
            }
            (Some(name), _, _, Some(text)) => format!("{name} == {0}, or {name} in [{0}]", literal(text)),
            (_, Some(text), Some(name), _) => format!("{name}.contains({})", literal(text)),
            (Some(one), _, Some(name), _) => format!("{name} == {one}, or {name}.contains({one})"),
            _ => return,
        };
        let problem = Problem::new("`in` needs a list, and no attribute and no text is one", accepted);
        self.found.push((Severity::Error, problem));
    }

    /// `header['x-tenant']`: attributes have no parts.
    fn index(&mut self, target: &IdedExpr, key: &IdedExpr) {
        let Some(name) = self.attribute(target) else { return };
        let whole = text_of(key).map(|key| format!("{name}.{key}"));
        let known = whole.and_then(|whole| self.vocabulary.problem(&whole));
        let problem = known.unwrap_or_else(|| {
            let message = format!("{} is one value and has no parts", quoted(&name));
            Problem::new(message, "an attribute of its own for each value that limits look at")
        });
        self.found.push((Severity::Error, problem));
    }

    /// An operand, and what it is compared with.
    fn beside(&mut self, operand: &mut IdedExpr, others: &[IdedExpr]) {
        let texts: Option<Vec<&str>> = others.iter().map(text_of).collect();
        if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
            let Some(name) = self.attribute(operand) else { return };
            let kind = self.vocabulary.kind(&name);
            self.found.extend(texts.into_iter().filter_map(|text| exact::literal(kind, &name, text)));
            read_as(operand, &name, if kind == Kind::Address { ReadAs::Client } else { ReadAs::Text });
        } else if !others.is_empty() && others.iter().all(is_number) {
            self.as_number(operand);
        }
    }

    /// Reads the operands of arithmetic as numbers.
    fn as_number(&mut self, operand: &mut IdedExpr) {
        if let Some(name) = self.attribute(operand) {
            read_as(operand, &name, ReadAs::Number);
        } else if let Expr::Call(call) = &mut operand.expr
            && ARITHMETIC.contains(&call.func_name.as_str())
            && !call.args.iter().any(|argument| text_of(argument).is_some())
        {
            call.args.iter_mut().for_each(|argument| self.as_number(argument));
        }
    }

    /// A text that is searched in an attribute.
    fn part(&mut self, function: &str, target: &IdedExpr, text: &IdedExpr) {
        let part = match function {
            "startsWith" => SearchKind::Start,
            "endsWith" | "contains" => SearchKind::Other,
            pattern::NAME => SearchKind::Expression,
            _ => return,
        };
        if let (Some(name), Some(text)) = (self.attribute(target), text_of(text)) {
            self.found.extend(exact::part(self.vocabulary.kind(&name), &name, part, text));
        }
    }

    /// The attribute, if the expression is one.
    fn attribute(&self, expression: &IdedExpr) -> Option<String> {
        let name = analysis::dotted(expression)?;
        let root = name.split('.').next().unwrap_or_default();
        (!self.bound.iter().any(|bound| bound == root)).then_some(name)
    }
}

fn read_as(expression: &mut IdedExpr, name: &str, read: ReadAs) {
    if let Some((prefix, _)) = VARIABLES.iter().find(|(_, known)| *known == read) {
        expression.expr = Expr::Ident(format!("{prefix}{name}"));
    }
}

fn text_of(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Whether an expression is a number, or arithmetic with one.
fn is_number(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)) => true,
        Expr::Call(call) if call.func_name == operators::NEGATE => call.args.iter().all(is_number),
        Expr::Call(call) if ARITHMETIC.contains(&call.func_name.as_str()) => call.args.iter().any(is_number),
        _ => false,
    }
}
