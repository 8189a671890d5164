//! The types of an expression's parts. A part that has a value for no request is refused when the policy is compiled: CEL
//! itself says so only when it evaluates a request, and by then the limit applies to requests that it does not mean.

use std::fmt;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{analysis, pattern, presence};
use crate::policy::finding::{Problem, quoted};
use crate::policy::vocabulary::{Kind, Vocabulary};

/// The type that a field needs as the value of its expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// `when`.
    Truth,
    /// `cost`.
    WholeNumber,
}

/// The types that a part may have; a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types(u16);

impl Types {
    const TRUTH: Self = Self(1);
    const INT: Self = Self(2);
    const UINT: Self = Self(4);
    const FRACTION: Self = Self(8);
    const TEXT: Self = Self(16);
    const BYTES: Self = Self(32);
    const LIST: Self = Self(64);
    const MAP: Self = Self(128);
    /// Null, and the type of a value.
    const OTHER: Self = Self(256);
    const ANY: Self = Self(511);

    const NAMED: [(Self, &'static str); 9] = [
        (Self::TRUTH, "a truth value"),
        (Self::INT, "a whole number"),
        (Self::UINT, "an unsigned number"),
        (Self::FRACTION, "a fraction"),
        (Self::TEXT, "a text"),
        (Self::BYTES, "bytes"),
        (Self::LIST, "a list"),
        (Self::MAP, "a map"),
        (Self::OTHER, "null or a type"),
    ];

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The types with all numbers, if one of them is a number: CEL compares numbers of different types.
    const fn comparable(self) -> Self {
        let numbers = Self::INT.or(Self::UINT).or(Self::FRACTION);
        if self.and(numbers).is_none() { self } else { self.or(numbers) }
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMED.iter().filter(|(one, _)| !one.and(*self).is_none()).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(" or "))
    }
}

const WHOLE: Types = Types::INT.or(Types::UINT);
const NUMBER: Types = WHOLE.or(Types::FRACTION);
const TRUTH_WANTED: &str = "a comparison, such as method == 'POST', has(plan) or tokens > 5";
const WHOLE_WANTED: &str = "a whole number, such as prompt_tokens + max_tokens, or tokens * 3 / 2";

/// The operators that take two values of one type, how they are written, and the types that they take.
const JOINING: [(&str, &str, Types); 5] = [
    (operators::ADD, "+", NUMBER.or(Types::TEXT).or(Types::BYTES).or(Types::LIST)),
    (operators::SUBSTRACT, "-", NUMBER),
    (operators::MULTIPLY, "*", NUMBER),
    (operators::DIVIDE, "/", NUMBER),
    (operators::MODULO, "%", WHOLE),
];
const ORDERING: [(&str, &str); 4] = [
    (operators::LESS, "<"),
    (operators::LESS_EQUALS, "<="),
    (operators::GREATER, ">"),
    (operators::GREATER_EQUALS, ">="),
];

/// Why no request gives an expression a value that its field can use; none if some request may.
pub(super) fn problem(tree: &IdedExpr, vocabulary: &Vocabulary, wanted: Wanted) -> Option<Problem> {
    let mut typing = Typing { vocabulary, bound: Vec::new(), problem: None };
    let types = typing.of(tree);
    let (usable, accepted) = match wanted {
        Wanted::Truth => (Types::TRUTH, TRUTH_WANTED),
        Wanted::WholeNumber => (WHOLE, WHOLE_WANTED),
    };
    if types.and(usable).is_none() {
        typing.refuse(format!("its value is {types}"), accepted);
    }
    typing.problem
}

struct Typing<'v> {
    vocabulary: &'v Vocabulary,
    /// Names that enclosing macros bind.
    bound: Vec<String>,
    /// The first problem.
    problem: Option<Problem>,
}

impl Typing<'_> {
    /// Records a problem. Nothing is concluded from the part, so one mistake is one finding.
    fn refuse(&mut self, message: String, accepted: &str) -> Types {
        self.problem.get_or_insert_with(|| Problem::new(message, accepted));
        Types::ANY
    }

    fn of(&mut self, part: &IdedExpr) -> Types {
        if presence::asked(part).is_some() {
            return Types::TRUTH;
        }
        if let Some(name) = analysis::dotted(part) {
            return self.attribute(&name);
        }
        match &part.expr {
            Expr::Literal(literal) => of_literal(literal),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(inner) => self.each(inner),
            Expr::List(_) => self.parts(part, Types::LIST),
            Expr::Map(_) => self.parts(part, Types::MAP),
            _ => self.parts(part, Types::ANY),
        }
    }

    /// Looks at the parts of a value whose type is known.
    fn parts(&mut self, part: &IdedExpr, types: Types) -> Types {
        for child in analysis::children(part) {
            self.of(child);
        }
        types
    }

    /// The types of an attribute's value. Protocols send numbers and texts, and texts only for these kinds.
    fn attribute(&self, name: &str) -> Types {
        let root = name.split('.').next().unwrap_or_default();
        if self.bound.iter().any(|bound| bound == root) {
            return Types::ANY;
        }
        match self.vocabulary.kind(name) {
            Kind::Address | Kind::Method | Kind::Host | Kind::Path => Types::TEXT,
            Kind::Text => Types::INT.or(Types::TEXT),
        }
    }

    /// A macro such as `exists`. What it binds may be anything.
    fn each(&mut self, inner: &ComprehensionExpr) -> Types {
        let range = self.of(&inner.iter_range);
        if range.and(Types::LIST.or(Types::MAP)).is_none() {
            let accepted = "a list, such as ['a', 'b'].exists(plan_of, plan_of == plan)";
            self.refuse(format!("a macro goes through a list, and this is {range}"), accepted);
        }
        let depth = self.bound.len();
        self.bound.push(inner.iter_var.clone());
        self.bound.extend(inner.iter_var2.clone());
        self.bound.push(inner.accu_var.clone());
        for part in [&inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result] {
            self.of(part);
        }
        self.bound.truncate(depth);
        Types::ANY
    }

    fn call(&mut self, call: &CallExpr) -> Types {
        let function = call.func_name.as_str();
        match (&call.target, call.args.as_slice()) {
            (None, [inner]) if function == operators::LOGICAL_NOT => self.truth("!", inner),
            (None, [left, right]) if function == operators::LOGICAL_AND => {
                self.truth("&&", left);
                self.truth("&&", right)
            }
            (None, [left, right]) if function == operators::LOGICAL_OR => {
                self.truth("||", left);
                self.truth("||", right)
            }
            (None, [condition, yes, no]) if function == operators::CONDITIONAL => {
                self.truth("?", condition);
                self.of(yes).or(self.of(no))
            }
            (None, [inner]) if function == operators::NEGATE => self.negated(inner),
            (None, [left, right]) => self.of_two(function, left, right),
            (target, args) => {
                let operands: Vec<&IdedExpr> =
                    target.iter().map(|target| &**target).chain(args.iter()).collect();
                self.function(function, &operands)
            }
        }
    }

    /// An operand that must be true or false.
    fn truth(&mut self, operator: &str, operand: &IdedExpr) -> Types {
        let types = self.of(operand);
        if types.and(Types::TRUTH).is_none() {
            let message = format!("`{operator}` needs a truth value, not {}", shown(operand, types));
            self.refuse(message, TRUTH_WANTED);
        }
        Types::TRUTH
    }

    fn negated(&mut self, operand: &IdedExpr) -> Types {
        let types = self.of(operand);
        let number = types.and(Types::INT.or(Types::FRACTION));
        if number.is_none() {
            let message = format!("`-` needs a number, not {}", shown(operand, types));
            return self.refuse(message, "a number");
        }
        number
    }

    /// An operator or a function of two operands.
    fn of_two(&mut self, function: &str, left: &IdedExpr, right: &IdedExpr) -> Types {
        if let Some((_, operator, taken)) = JOINING.iter().find(|(name, ..)| *name == function) {
            return self.joined(operator, *taken, left, right);
        }
        let is_equality = [operators::EQUALS, operators::NOT_EQUALS].contains(&function);
        let order = ORDERING.iter().find(|(name, _)| *name == function).map(|(_, operator)| *operator);
        if !is_equality && order.is_none() {
            return self.function(function, &[left, right]);
        }
        let (one, other) = (self.of(left), self.of(right));
        let is_null = [left, right].iter().any(|side| matches!(side.expr, Expr::Literal(LiteralValue::Null)));
        if one.comparable().and(other.comparable()).is_none() && !is_null {
            let (one, other) = (shown(left, one), shown(right, other));
            let message = match order {
                Some(operator) => format!("`{operator}` does not compare {one} with {other}"),
                None => format!("{one} never equals {other}"),
            };
            self.refuse(message, "two numbers, or two texts");
        }
        Types::TRUTH
    }

    /// Arithmetic: both operands have one type, which is that of the result.
    fn joined(&mut self, operator: &str, taken: Types, left: &IdedExpr, right: &IdedExpr) -> Types {
        let (one, other) = (self.of(left), self.of(right));
        let result = one.and(other).and(taken);
        if result.is_none() {
            let message =
                format!("`{operator}` does not take {} and {}", shown(left, one), shown(right, other));
            let is_fraction = one == Types::FRACTION || other == Types::FRACTION;
            let accepted = if is_fraction { WHOLE_WANTED } else { "two numbers of one type" };
            return self.refuse(message, accepted);
        }
        if ["/", "%"].contains(&operator) && is_zero(right) {
            return self.refuse("it divides by 0".to_owned(), "a divisor that is not 0");
        }
        result
    }

    /// A function, with its target as its first operand.
    fn function(&mut self, name: &str, operands: &[&IdedExpr]) -> Types {
        let types: Vec<Types> = operands.iter().map(|operand| self.of(operand)).collect();
        let (taken, result) = match name {
            "startsWith" | "endsWith" | "contains" | pattern::NAME => (Types::TEXT, Types::TRUTH),
            "size" => (Types::TEXT.or(Types::BYTES).or(Types::LIST).or(Types::MAP), Types::INT),
            "int" => (NUMBER.or(Types::TEXT), Types::INT),
            "uint" => (NUMBER.or(Types::TEXT), Types::UINT),
            "double" => (NUMBER.or(Types::TEXT), Types::FRACTION),
            "string" => (Types::ANY, Types::TEXT),
            "bool" => (Types::TRUTH.or(Types::TEXT), Types::TRUTH),
            "bytes" => (Types::ANY, Types::BYTES),
            "type" => (Types::ANY, Types::OTHER),
            operators::IN | operators::NOT_STRICTLY_FALSE => (Types::ANY, Types::TRUTH),
            _ => (Types::ANY, Types::ANY),
        };
        let wrong = operands.iter().zip(&types).find(|(_, types)| types.and(taken).is_none());
        if let Some((operand, types)) = wrong {
            let message = format!("{name}() does not take {}", shown(operand, *types));
            return self.refuse(message, &taken.to_string());
        }
        result
    }
}

fn of_literal(literal: &LiteralValue) -> Types {
    match literal {
        LiteralValue::Boolean(_) => Types::TRUTH,
        LiteralValue::Int(_) => Types::INT,
        LiteralValue::UInt(_) => Types::UINT,
        LiteralValue::Double(_) => Types::FRACTION,
        LiteralValue::String(_) => Types::TEXT,
        LiteralValue::Bytes(_) => Types::BYTES,
        _ => Types::OTHER,
    }
}

fn is_zero(part: &IdedExpr) -> bool {
    match &part.expr {
        Expr::Literal(LiteralValue::Int(number)) => *number.inner() == 0,
        Expr::Literal(LiteralValue::UInt(number)) => *number.inner() == 0,
        _ => false,
    }
}

/// A part as findings show it: an attribute by its name, anything else by its types.
fn shown(part: &IdedExpr, types: Types) -> String {
    match analysis::dotted(part) {
        Some(name) => format!("{} ({types})", quoted(&name)),
        None => types.to_string(),
    }
}
