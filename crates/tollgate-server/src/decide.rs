//! `tollgate decide`: decisions in this process, on a clock that the arguments move.

use tollgate::policy::source::nearest;
use tollgate::{CheckRequest, Clock, Engine, HeaderPolicy, MemoryStore, Policy, RequestError};
use tollgate_tower::attributes::BUILT_IN;

use crate::cli::DecideArguments;
use crate::console::Console;
use crate::decision_json::{Decided, Hold};
use crate::policy_file;
use crate::text::shown;
use crate::{FAILURE, SUCCESS};

mod table;

use table::DecisionTable;

/// Memory for the few counters of one request.
const MEMORY_BYTES: u64 = 4 << 20;

/// Decides, and returns whether all requests were allowed.
///
/// # Errors
/// When nothing could be decided.
pub(crate) fn run(arguments: &DecideArguments, console: &mut Console) -> Result<u8, String> {
    let loaded = policy_file::load(arguments.policy.as_ref()).map_err(|error| error.to_string())?;
    let request = request(arguments).map_err(|error| error.to_string())?;
    if !loaded.warnings.is_empty() {
        console.problem(&loaded.warnings);
    }
    if let Some(compat) = loaded.rules.compat() {
        let format = compat.format().name();
        return Err(format!(
            "{}: {format} are decided by a server: start one with `tollgate serve`, and ask POST /json",
            loaded.name
        ));
    }
    let policy = loaded.rules.policy();
    for attribute in &arguments.attributes {
        if let Some(doubt) = unused(policy, &attribute.name) {
            console.warning(doubt);
        }
    }
    let start = arguments.at.unwrap_or_else(|| Clock::precise().now());
    let store = MemoryStore::new(MEMORY_BYTES, start);
    let engine = Engine::builder().policy(loaded.rules.into_parts().0).store(store).build();
    if let Some(problem) = engine.policy().address_problem(&request) {
        return Err(problem.to_string());
    }
    let mut now = start;
    let mut table = DecisionTable::default();
    let mut status = SUCCESS;
    for _ in 0..arguments.times {
        let Ok(decision) = engine.try_check(&request, now) else { return Ok(FAILURE) }; // Memory never waits.
        if !decision.is_allowed() {
            status = FAILURE;
        }
        if arguments.json {
            let decided = Decided::new(&decision, Hold::None, &HeaderPolicy::default(), &request, now);
            console.line(String::from_utf8_lossy(&decided.text()));
        } else {
            table.row(&decision, now.since(start), console);
        }
        if console.is_closed() {
            return Ok(status);
        }
        now = now + arguments.every;
    }
    if !arguments.json {
        table.end(console);
    }
    Ok(status)
}

/// A warning about an attribute that no limit reads and no HTTP request is known to have.
fn unused(policy: &Policy, name: &str) -> Option<String> {
    if policy.names(name) || policy.declares(name) || BUILT_IN.contains(&name) {
        return None;
    }
    let meant = nearest(name, policy.attributes_used().chain(BUILT_IN));
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    Some(format!("no limit uses {}{meant}", shown(name)))
}

fn request(arguments: &DecideArguments) -> Result<CheckRequest<'_>, RequestError> {
    let mut request = CheckRequest::new();
    for attribute in &arguments.attributes {
        request.push(&attribute.name, &attribute.value)?;
    }
    request.cost(arguments.cost)
}
