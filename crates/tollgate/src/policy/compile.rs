//! From a file to a policy: a pure function that reports every problem. This module reads the fields of the file itself.
//! [`limit`] reads those of a limit, and [`super::check`] checks between fields and between limits.

mod attributes;
mod defaults;
pub(crate) mod limit;
pub(crate) mod lease;
mod on_store_failure;
mod penalty;
mod quota;
pub(crate) mod when;

use crate::credential::CredentialAttributes;
use crate::policy::check;
use crate::policy::compared;
use crate::policy::document::{self, Node, Reading, Tree};
use crate::policy::expression::with_room;
use crate::policy::fields::Fields;
use crate::policy::finding::{Findings, Position, Problem, Report};
use crate::policy::index::LimitIndex;
use crate::policy::limit::Limit;
use crate::policy::positions::LimitPositions;
use crate::policy::{LIMITS_MAX, Policy, Vocabulary};
use defaults::Defaults;

/// Longest name of a domain, in bytes.
const DOMAIN_BYTES_MAX: usize = 128;
/// The fields of a file.
pub(crate) const FIELDS: [&str; 5] = ["domain", "shard_by", "attributes", "defaults", "limits"];

/// Compiles the bytes of a file, on a stack that no expression can exhaust.
pub(crate) fn compile(
    source_name: &str,
    bytes: &[u8],
    credentials: &CredentialAttributes,
) -> Result<Policy, Findings> {
    let compile = || compile_here(Report::new(source_name).knowing(credentials), bytes);
    with_room(compile).unwrap_or_else(compile)
}

fn compile_here(mut report: Report, bytes: &[u8]) -> Result<Policy, Findings> {
    let policy = document::read(bytes, Reading::OWN, &mut report).and_then(|root| read(&root, &mut report));
    finish(policy, report)
}

/// The policy with its warnings, or all problems.
pub(crate) fn finish(policy: Option<Policy>, report: Report) -> Result<Policy, Findings> {
    match policy {
        Some(policy) if report.errors() == 0 => Ok(Policy { warnings: report.into_findings(), ..policy }),
        _ => Err(report.into_findings()),
    }
}

fn read(root: &Node, report: &mut Report) -> Option<Policy> {
    if !matches!(root.tree, Tree::Table(_)) {
        let problem = Problem::new(format!("the file is {}", root.kind()), "a table with `limits:`");
        report.error(root.at, "", problem);
        return None;
    }
    let fields = Fields::of(root, "", "", report)?;
    fields.only(&FIELDS, report);
    let domain = domain(fields, report);
    let vocabulary = attributes::read(fields, report);
    let defaults = defaults::read(fields, report);
    let shard_by = fields.text("shard_by", "the name of an attribute", report);
    if let Some(attribute) = shard_by {
        check::attribute(attribute, &vocabulary, fields.place("shard_by"), "shard_by", report);
    }
    let nodes = limit_nodes(fields, report)?;
    let shared = Shared { vocabulary: &vocabulary, defaults: &defaults };
    let ReadLimits { limits, places, positions } = limits(nodes, &shared, report);
    if let Some(attribute) = shard_by
        && limits.len() == nodes.len()
    {
        sharded(attribute, &limits, fields.place("shard_by"), report);
    }
    check::together(&limits, &places, report);
    let index = match LimitIndex::new(&limits) {
        Ok(index) => index,
        Err(problem) => {
            report.error(fields.place("limits"), "limits", problem);
            return None;
        }
    };
    let credentials = report.credentials().clone();
    let compared = compared::names(&limits, &credentials, &vocabulary);
    let shard_by = shard_by.map(str::to_owned);
    Some(Policy {
        domain,
        shard_by,
        vocabulary,
        limits,
        compared,
        credentials,
        index,
        positions,
        warnings: Findings::default(),
    })
}

fn domain(fields: Fields<'_>, report: &mut Report) -> Option<String> {
    let accepted = "a text of 1 to 128 bytes";
    let domain = fields.text("domain", accepted, report)?;
    if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX {
        let problem = Problem::new(format!("a text of {} bytes", domain.len()), accepted);
        report.error(fields.place("domain"), "domain", problem);
    }
    Some(domain.to_owned())
}

fn limit_nodes<'n>(fields: Fields<'n>, report: &mut Report) -> Option<&'n [Node]> {
    let accepted = "a list of limits, such as `- {name: all, rate: 100/s}`";
    let at = fields.place("limits");
    let Some(node) = fields.get("limits") else {
        report.error(at, "limits", Problem::new("missing", accepted));
        return None;
    };
    let Tree::List(nodes) = &node.tree else {
        report.error(at, "limits", Problem::new(format!("is {}", node.kind()), accepted));
        return None;
    };
    if nodes.is_empty() {
        let problem = Problem::new("no limits: every request passes", accepted);
        report.warning(at, "limits", problem);
    }
    if nodes.len() > LIMITS_MAX {
        let problem = Problem::new(format!("{} limits", nodes.len()), format!("at most {LIMITS_MAX}"));
        report.error(at, "limits", problem);
        return None;
    }
    Some(nodes)
}

/// Fields of the file that apply to all limits.
struct Shared<'s> {
    vocabulary: &'s Vocabulary,
    defaults: &'s Defaults,
}

/// The readable limits of a file.
#[derive(Default)]
struct ReadLimits {
    limits: Vec<Limit>,
    /// Their indexes in the file, with the positions of their names.
    places: Vec<(usize, Position)>,
    positions: Vec<LimitPositions>,
}

fn limits(nodes: &[Node], shared: &Shared<'_>, report: &mut Report) -> ReadLimits {
    let mut read = ReadLimits::default();
    for (index, node) in nodes.iter().enumerate() {
        report.enter_limit(index, limit::name_of(node));
        let applied = shared.defaults.applied(node);
        if let Some((limit, positions)) = limit::read(&applied, shared.vocabulary, report) {
            read.limits.push(limit);
            read.places.push((index, positions.of_field("name")));
            read.positions.push(positions);
        }
    }
    report.leave_limit();
    read
}

/// Keys share a slot by an attribute that they have.
fn sharded(attribute: &str, limits: &[Limit], at: Position, report: &mut Report) {
    if !limits.iter().any(|limit| limit.by.iter().any(|by| by.name() == attribute)) {
        let message = format!("no limit counts by {attribute}, so no keys share a slot");
        let problem = Problem::new(message, "an attribute of some limit's `by`");
        report.warning(at, "shard_by", problem);
    }
}
