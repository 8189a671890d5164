//! Credentials in an expression: a literal that is compared with a credential becomes its digest. No other use of a
//! credential is accepted.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::CelString;

use super::{analysis, presence};
use crate::credential::CredentialAttributes;
use crate::policy::finding::Problem;
use crate::policy::seal::{text_unknown, value_problem};

/// Replaces literals by digests, and returns the texts that were replaced, each with what is there now.
///
/// # Errors
/// The expression uses a credential for more than its presence or its identity.
pub(super) fn seal(
    expression: &mut IdedExpr,
    credentials: &CredentialAttributes,
) -> Result<Vec<(String, String)>, Problem> {
    let mut sealing = Sealing { credentials, replaced: Vec::new() };
    sealing.walk(expression)?;
    Ok(sealing.replaced)
}

struct Sealing<'c> {
    credentials: &'c CredentialAttributes,
    replaced: Vec<(String, String)>,
}

impl Sealing<'_> {
    fn credential(&self, expression: &IdedExpr) -> Option<String> {
        analysis::dotted(expression).filter(|name| self.credentials.contains(name))
    }

    fn walk(&mut self, expression: &mut IdedExpr) -> Result<(), Problem> {
        if presence::asked(expression).is_some() {
            return Ok(());
        }
        if let Some(name) = self.credential(expression) {
            return Err(text_unknown(&name));
        }
        if let Expr::Call(call) = &mut expression.expr
            && self.compares(call)?
        {
            return Ok(());
        }
        analysis::children_mut(expression).into_iter().try_for_each(|part| self.walk(part))
    }

    /// Seals a comparison with a credential. Returns whether the call is one.
    fn compares(&mut self, call: &mut CallExpr) -> Result<bool, Problem> {
        let is_equality = matches!(call.func_name.as_str(), operators::EQUALS | operators::NOT_EQUALS);
        let is_in = call.func_name == operators::IN;
        let [left, right] = call.args.as_mut_slice() else { return Ok(false) };
        match (self.credential(left), self.credential(right)) {
            (Some(_), Some(_)) if is_equality => Ok(true),
            (Some(name), None) if is_equality => self.replace(right, &name).map(|()| true),
            (None, Some(name)) if is_equality => self.replace(left, &name).map(|()| true),
            (Some(name), None) if is_in => {
                let Expr::List(list) = &mut right.expr else { return Err(text_unknown(&name)) };
                list.elements.iter_mut().try_for_each(|element| self.replace(element, &name))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn replace(&mut self, literal: &mut IdedExpr, name: &str) -> Result<(), Problem> {
        let Expr::Literal(LiteralValue::String(text)) = &mut literal.expr else {
            return Err(text_unknown(name));
        };
        if let Some(problem) = value_problem(self.credentials, name, text.inner()) {
            return Err(problem);
        }
        let kept = self.credentials.kept(name, text.inner());
        self.replaced.push((text.inner().to_owned(), kept.clone()));
        *text = CelString::from(kept);
        Ok(())
    }
}
