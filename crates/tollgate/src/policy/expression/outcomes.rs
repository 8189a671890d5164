//! The possible outcomes of a condition where a part of it has no value. A part that misses an attribute is absent. A part with another error, such
//! as asking whether `many` is more than 5, might be true and might be false; what a client sends must not decide which, so a condition
//! holds if it may be true. The order of operands says nothing: CEL itself reports only one of several errors, the one it meets last.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, operators};
use cel::{Context, ExecutionError};

use super::{Failure, analysis, reading};
use crate::policy::finding::quoted;

/// The possible outcomes of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcomes(u8);

impl Outcomes {
    const NONE: Self = Self(0);
    const TRUE: Self = Self(1);
    const FALSE: Self = Self(2);
    const ABSENT: Self = Self(4);
    /// True or false, or a value that is neither.
    const UNKNOWN: Self = Self(3);
    const EACH: [Self; 3] = [Self::TRUE, Self::FALSE, Self::ABSENT];

    pub(super) const fn may_be_true(self) -> bool {
        self.has(Self::TRUE)
    }

    const fn has(self, outcome: Self) -> bool {
        self.0 & outcome.0 != 0
    }

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn is_certain(self) -> bool {
        self.0.is_power_of_two()
    }

    fn each(self) -> impl Iterator<Item = Self> {
        Self::EACH.into_iter().filter(move |outcome| self.has(*outcome))
    }

    fn negated(self) -> Self {
        let one = |outcome: Self| match outcome {
            Self::TRUE => Self::FALSE,
            Self::FALSE => Self::TRUE,
            other => other,
        };
        self.each().map(one).fold(Self::NONE, Self::or)
    }

    /// The outcomes of `&&` or `||` on two operands, of which one outcome settles it, whatever the other is.
    fn joined(self, other: Self, settling: Self) -> Self {
        let one = |left: Self, right: Self| {
            [settling, Self::ABSENT].into_iter().find(|outcome| left == *outcome || right == *outcome)
        };
        let pairs = self.each().flat_map(|left| other.each().map(move |right| (left, right)));
        let neither = settling.negated();
        pairs.map(|(left, right)| one(left, right).unwrap_or(neither)).fold(Self::NONE, Self::or)
    }
}

/// The value of an expression. The interpreter has code paths that panic; a request must not reach the caller as one.
pub(super) fn value(expression: &IdedExpr, context: &Context<'_, '_>) -> Result<cel::Value, Failure> {
    match catch_unwind(AssertUnwindSafe(|| cel::Value::resolve(expression, context))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ExecutionError::UndeclaredReference(name))) => {
            let name = reading::of_variable(&name).map_or(name.as_str(), |(name, _)| name);
            Err(Failure::Absent(name.to_owned()))
        }
        Ok(Err(error)) => Err(Failure::Other(reason(&error))),
        Err(_) => Err(Failure::Other("the expression cannot be evaluated".to_owned())),
    }
}

/// Why a request gives an expression no value, without the words of the interpreter.
fn reason(error: &ExecutionError) -> String {
    match error {
        ExecutionError::UnsupportedBinaryOperator(_, one, other) => {
            let is_number = |value: &&cel::Value| matches!(value, cel::Value::Int(_) | cel::Value::UInt(_));
            match [one, other].into_iter().find(|value| !is_number(value)) {
                Some(value) => format!("{} is not a whole number", shown(value)),
                None => "it computes with numbers of different types".to_owned(),
            }
        }
        ExecutionError::ValuesNotComparable(one, other) => {
            format!("{} and {} cannot be compared", shown(one), shown(other))
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "it divides by 0".to_owned()
        }
        ExecutionError::Overflow(..) => "it is too large to compute".to_owned(),
        ExecutionError::FunctionError { function, .. } => format!("{function}() does not take such a value"),
        _ => "a value has a type that the expression does not take".to_owned(),
    }
}

/// A value as messages show it.
pub(super) fn shown(value: &cel::Value) -> String {
    match value {
        cel::Value::Int(number) => number.to_string(),
        cel::Value::UInt(number) => number.to_string(),
        cel::Value::Float(number) => number.to_string(),
        cel::Value::Bool(truth) => truth.to_string(),
        cel::Value::String(text) => format!("the text {}", quoted(text)),
        _ => "its value".to_owned(),
    }
}

/// The possible outcomes of an expression.
pub(super) fn of(expression: &IdedExpr, context: &Context<'_, '_>) -> Outcomes {
    let failure = match value(expression, context) {
        Ok(cel::Value::Bool(true)) => return Outcomes::TRUE,
        Ok(cel::Value::Bool(false)) => return Outcomes::FALSE,
        Ok(_) => return Outcomes::UNKNOWN,
        Err(failure) => failure,
    };
    let call = match &expression.expr {
        Expr::Call(call) => (call.func_name.as_str(), call.args.as_slice()),
        Expr::Comprehension(inner) => return of_each(inner, &failure, context),
        _ => ("", [].as_slice()),
    };
    match call {
        (operators::LOGICAL_AND, [left, right]) => {
            of(left, context).joined(of(right, context), Outcomes::FALSE)
        }
        (operators::LOGICAL_OR, [left, right]) => {
            of(left, context).joined(of(right, context), Outcomes::TRUE)
        }
        (operators::LOGICAL_NOT, [inner]) => of(inner, context).negated(),
        (operators::CONDITIONAL, [condition, yes, no]) => {
            let one = |outcome: Outcomes| match outcome {
                Outcomes::TRUE => of(yes, context),
                Outcomes::FALSE => of(no, context),
                other => other,
            };
            of(condition, context).each().map(one).fold(Outcomes::NONE, Outcomes::or)
        }
        _ => of_all_parts(expression, &failure, context),
    }
}

/// The outcomes of an expression that needs a value of each of its parts.
fn of_all_parts(expression: &IdedExpr, failure: &Failure, context: &Context<'_, '_>) -> Outcomes {
    let parts = analysis::children(expression);
    let is_missing = matches!(failure, Failure::Absent(_)) && parts.is_empty();
    if is_missing || parts.iter().any(|part| of(part, context) == Outcomes::ABSENT) {
        Outcomes::ABSENT
    } else {
        Outcomes::UNKNOWN
    }
}

/// The outcomes of a macro that goes through a list.
fn of_each(inner: &ComprehensionExpr, failure: &Failure, context: &Context<'_, '_>) -> Outcomes {
    if of(&inner.iter_range, context) == Outcomes::ABSENT {
        return Outcomes::ABSENT;
    }
    let (Failure::Absent(_), Ok(cel::Value::List(items)), None) =
        (failure, value(&inner.iter_range, context), &inner.iter_var2)
    else {
        return Outcomes::UNKNOWN;
    };
    let mut parts = Vec::new();
    without(&inner.loop_step, &inner.accu_var, &mut parts);
    let is_certain = |item: &cel::Value| {
        let mut within = context.new_inner_scope();
        within.add_variable_from_value(inner.iter_var.clone(), item.clone());
        parts.iter().all(|part| {
            let is_value = value(part, &within).is_ok();
            is_value || of(part, &within).is_certain()
        })
    };
    // Something was absent in it; unless something else was wrong, too, that is what it comes to.
    if items.iter().all(is_certain) { Outcomes::ABSENT } else { Outcomes::UNKNOWN }
}

/// The largest parts of an expression that do not mention a variable.
fn without<'e>(expression: &'e IdedExpr, variable: &str, parts: &mut Vec<&'e IdedExpr>) {
    if mentions(expression, variable) {
        analysis::children(expression).into_iter().for_each(|child| without(child, variable, parts));
    } else {
        parts.push(expression);
    }
}

fn mentions(expression: &IdedExpr, variable: &str) -> bool {
    match &expression.expr {
        Expr::Ident(name) => name == variable,
        // It has a variable of its own by that name.
        Expr::Comprehension(inner) if inner.accu_var == variable => {
            mentions(&inner.iter_range, variable) || mentions(&inner.accu_init, variable)
        }
        _ => analysis::children(expression).into_iter().any(|child| mentions(child, variable)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::policy::Expression;
    use crate::policy::vocabulary::Vocabulary;
    use crate::request::CheckRequest;

    fn holds(source: &str, attributes: &[(&str, &str)]) -> bool {
        let mut expression = Expression::new(source).unwrap();
        expression.settle(&Vocabulary::default(), crate::policy::expression::Wanted::Truth);
        let mut request = CheckRequest::new();
        for (name, value) in attributes {
            request.push(name, *value).unwrap();
        }
        expression.holds(request.first())
    }

    /// The story: `size > 1000000 || plan == 'free'` was false for a request of size `1e9` without a plan, so a client opened the limit
    /// with a value that is no number; in the other order of operands it was not.
    #[test]
    fn an_error_beside_a_missing_attribute_opens_nothing() {
        for source in [
            "size > 1000000 || plan == 'free'",
            "plan == 'free' || size > 1000000",
            "size * 8 > 1000000 || plan == 'free'",
            "!(size > 5 && plan == 'free')",
            "!(plan == 'free' && size > 5)",
            "has(size) && size > 5 || plan == 'free'",
            "plan == 'free' || tenant == 'a' || size > 5",
            "plan == 'free' || (size > 5 ? true : false)",
            "(size > 5 || plan == 'free') == true",
            "[1, 2].exists(x, size > x || plan == 'free')",
            "['free', 'trial'].exists(x, plan == x || size > 5)",
            "!['free'].all(x, plan == x && size > 5)",
            "size([1, 2].filter(x, plan == 'free' || size > x)) > 0",
        ] {
            for value in ["1e9", "2000000 bytes", "99999999999999999999", "many"] {
                assert!(holds(source, &[("size", value)]), "{source} with size {value}");
            }
        }
        assert!(holds("size * 8 > 10 || plan == 'free'", &[("size", "9223372036854775807")]), "an overflow");
    }

    /// An operand that a missing attribute makes false decides, also if the other operand is an error.
    #[test]
    fn a_missing_attribute_still_makes_it_false() {
        for source in [
            "size > 5 && plan == 'free'",
            "plan == 'free' && size > 5",
            "plan == 'free' || tenant == 'a'",
            "plan != 'free'",
            "!(plan == 'free')",
            "['a'].exists(x, plan == x)",
            "['a'].exists(x, plan.startsWith(x))",
            "has(plan) && size > 5",
            "size > tier || plan == 'free'",
        ] {
            assert!(!holds(source, &[("size", "many")]), "{source}");
        }
    }

    /// An expression, and the same with the operands of every `&&` and `||` in the other order.
    fn both_orders() -> impl Strategy<Value = (String, String)> {
        let leaves = ["size > 5", "plan == 'x'", "tenant == 'a'", "has(plan)", "size * 8 > 40", "!has(size)"];
        let leaf =
            proptest::sample::select(leaves.to_vec()).prop_map(|leaf| (leaf.to_owned(), leaf.to_owned()));
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone(), proptest::sample::select(vec!["&&", "||"])).prop_map(
                    |(left, right, sign)| (
                        format!("({} {sign} {})", left.0, right.0),
                        format!("({} {sign} {})", right.1, left.1)
                    )
                ),
                inner.clone().prop_map(|one| (format!("!({})", one.0), format!("!({})", one.1))),
                (inner.clone(), inner.clone(), inner).prop_map(|(condition, yes, no)| (
                    format!("({} ? {} : {})", condition.0, yes.0, no.0),
                    format!("({} ? {} : {})", condition.1, yes.1, no.1)
                )),
            ]
        })
    }

    proptest! {
        /// The order of operands decides nothing, and a value that is no number limits whatever some number limits.
        #[test]
        fn no_value_and_no_order_opens_a_limit(
            (source, other) in both_orders(),
            plan in proptest::option::of("[xy]"),
            tenant in proptest::option::of("[ab]"),
        ) {
            let with = |source: &str, size: Option<&str>| {
                let given = [("size", size), ("plan", plan.as_deref()), ("tenant", tenant.as_deref())];
                let given: Vec<_> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                holds(source, &given)
            };
            for size in [None, Some("6"), Some("1"), Some("many"), Some("9223372036854775807")] {
                prop_assert_eq!(with(&source, size), with(&other, size), "{} with {:?}", &source, size);
            }
            let limits_some = with(&source, Some("6")) || with(&source, Some("1"));
            prop_assert!(!limits_some || with(&source, Some("many")), "{}", &source);
        }
    }
}
