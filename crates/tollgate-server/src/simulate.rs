//! `tollgate simulate fleet`: predicts what servers that share a store admit together.

use tollgate::policy::Limit;
use tollgate::store::Lease;
use tollgate::{Quota, Rate, Ticks};
use tollgate_sim::fleet::{CountingMode, FleetOutcome, FleetScenario, run as simulate};

use crate::cli::{FleetArguments, SimulateCommand};
use crate::console::Console;
use crate::text::unknown_name;
use crate::{FAILURE, SUCCESS, policy_file};

/// Maximum number of simulated requests: about a minute's work.
const REQUESTS_MAX: u64 = 20_000_000;
/// The maximum width of a bar.
const BAR: u64 = 50;
/// Requests per second that one redis-server decides, with many in each call, by this project's own measurement
/// (bench/README.md).
const STORE_REQUESTS: u64 = 300_000;
/// The servers and requests per second of the extrapolated fleet.
const PAPER: (u64, u64) = (100, 1_000_000);

/// Runs a simulation.
///
/// # Errors
/// When the arguments or the policy allow none.
pub(crate) fn run(command: &SimulateCommand, console: &mut Console) -> Result<u8, String> {
    let SimulateCommand::Fleet(arguments) = command;
    let (name, quota, lease) = chosen(arguments)?;
    let requests = u128::from(arguments.offered) * u128::from(arguments.duration.as_micros()) / 1_000_000;
    if requests == 0 || requests > u128::from(REQUESTS_MAX) {
        return Err(format!(
            "--offered and --duration make {requests} requests; accepted: 1 to {REQUESTS_MAX} of them"
        ));
    }
    let scenario = FleetScenario {
        quota,
        nodes: arguments.nodes,
        keys: arguments.keys,
        offered: arguments.offered,
        time: arguments.duration,
        lease: (lease.share(), lease.ttl()),
        skew: arguments.skew,
        losses: arguments.losses,
        cuts: arguments.cuts,
        seed: arguments.seed,
    };
    let mut seen = Vec::new();
    for (mode, label) in [
        (CountingMode::Exact, "exact"),
        (CountingMode::Leased, "leased"),
        (CountingMode::Separate, "each for itself"),
    ] {
        console.progress(format_args!("simulating {requests} requests, {label}"));
        match simulate(&scenario, mode) {
            Ok(outcome) => seen.push((label, outcome)),
            Err(findings) => {
                console.problem(findings);
                return Ok(FAILURE);
            }
        }
    }
    console.end_progress();
    if arguments.json {
        console.line(json_of(&name, &scenario, &seen));
    } else {
        show(&name, &scenario, &seen, console);
    }
    Ok(SUCCESS)
}

/// The simulated limit, and the bounds of its leases.
fn chosen(arguments: &FleetArguments) -> Result<(String, Quota, Lease), String> {
    let Some(file) = &arguments.policy else {
        if let Some(name) = &arguments.limit {
            return Err(format!("--limit {name:?}: no policy has it; name its file with --policy FILE"));
        }
        let quota = Quota::token_bucket(Rate::per_second(1_000)).map_err(|error| error.to_string())?;
        return Ok(("1,000 a second".to_owned(), quota, Lease::default()));
    };
    let loaded = policy_file::load(Some(file)).map_err(|error| error.to_string())?;
    let (policy, compat) = loaded.rules.into_parts();
    if compat.is_some() {
        return Err("a file of another program has no leases; accepted: a policy of Tollgate's".to_owned());
    }
    let suits = |limit: &&Limit| limit.quotas().first().is_some_and(Lease::suits);
    let found = match &arguments.limit {
        Some(name) => policy.limits().iter().find(|limit| limit.name() == name),
        None => policy.limits().iter().find(suits),
    };
    let limit = found.ok_or_else(|| {
        let names: Vec<&str> = policy.limits().iter().filter(suits).map(Limit::name).collect();
        match &arguments.limit {
            Some(name) => unknown_name(&format!("--limit: the policy has no limit {name:?}"), name, &names),
            None => "no limit of the policy can be leased; docs/leases.md says which can".to_owned(),
        }
    })?;
    if !suits(&limit) {
        return Err(format!("{} cannot be leased; see `tollgate policy check`", limit.name()));
    }
    let quota = limit.quota(limit.default_quota()).or_else(|| limit.quotas().first());
    let quota = quota.ok_or_else(|| format!("{} counts nothing", limit.name()))?.clone();
    Ok((limit.name().to_owned(), quota, limit.lease().unwrap_or_default()))
}

/// The maximum that a limit admits for one key in a time: its burst, plus what the rate gives.
fn bound(quota: &Quota, time: Ticks) -> u64 {
    let come = quota.rate().map_or(0, |rate| {
        let units = u128::from(rate.units()) * u128::from(time.as_micros());
        u64::try_from(units / u128::from(rate.period().as_micros().max(1))).unwrap_or(u64::MAX)
    });
    quota.capacity().saturating_add(come)
}

fn json_of(name: &str, scenario: &FleetScenario, seen: &[(&str, FleetOutcome)]) -> serde_json::Value {
    let most = bound(&scenario.quota, scenario.time);
    let one = |(label, one): &(&str, FleetOutcome)| {
        serde_json::json!({
            "counting": label, "asked": one.asked, "admitted": one.admitted, "of_one_key": one.most,
            "above_bound": one.most.saturating_sub(most), "stranded": one.stranded, "apart": one.local,
            "store_calls": one.calls,
        })
    };
    serde_json::json!({
        "limit": name, "nodes": scenario.nodes, "offered_per_second": scenario.offered,
        "time_ms": scenario.time.as_micros() / 1_000, "bound_of_one_key": most,
        "runs": seen.iter().map(one).collect::<Vec<_>>(),
    })
}

fn show(name: &str, scenario: &FleetScenario, seen: &[(&str, FleetOutcome)], console: &mut Console) {
    let most = bound(&scenario.quota, scenario.time);
    console.line(format_args!(
        "{name}: {} servers, {} requests a second, {}; a key may get {most}",
        scenario.nodes,
        scenario.offered,
        scenario.time.readable()
    ));
    console.line("");
    console.line(format_args!(
        "{:<16} {:>10} {:>10} {:>12} {:>12} {:>10} {:>10} {:>14}",
        "", "asked", "admitted", "of one key", "above bound", "stranded", "apart", "store calls/s"
    ));
    for (label, one) in seen {
        let calls = if *label == "each for itself" { 0 } else { a_second(one.calls, scenario.time) };
        console.line(format_args!(
            "{label:<16} {:>10} {:>10} {:>12} {:>12} {:>10} {:>10} {calls:>14}",
            one.asked,
            one.admitted,
            one.most,
            one.most.saturating_sub(most),
            one.stranded,
            one.local
        ));
    }
    console.line("");
    let widest = seen.iter().map(|(_, one)| one.most).max().unwrap_or(0).max(most).max(1);
    let full = if console.has_unicode() { "█" } else { "#" };
    let bar = |count: u64, widest: u64| full.repeat(bar_width(count, widest));
    console.line(format_args!("{:<16} {}", "the limit", bar(most, widest)));
    for (label, one) in seen {
        console.line(format_args!("{label:<16} {} {}", bar(one.most, widest), one.most));
    }
    let Some((_, leased)) = seen.iter().find(|(label, _)| *label == "leased") else { return };
    console.line("");
    console.line("of each server: asked, and admitted, leased");
    let widest = leased.asked_by_node.iter().copied().max().unwrap_or(0).max(1);
    for (node, (asked, admitted)) in leased.asked_by_node.iter().zip(&leased.by_node).enumerate() {
        console.line(format_args!("{:>6} {} {asked}", node + 1, bar(*asked, widest)));
        console.line(format_args!("       {} {admitted}", bar(*admitted, widest)));
    }
    console.line("");
    paper(scenario, leased).into_iter().for_each(|line| console.line(line));
}

fn a_second(count: u64, time: Ticks) -> u64 {
    u64::try_from(u128::from(count) * 1_000_000 / u128::from(time.as_micros().max(1))).unwrap_or(u64::MAX)
}

fn bar_width(count: u64, widest: u64) -> usize {
    let width = u128::from(count) * u128::from(BAR) / u128::from(widest.max(1));
    usize::try_from(width).unwrap_or(0)
}

/// Extrapolates the result to a hundred servers and a million requests per second, and names what would fail first.
fn paper(scenario: &FleetScenario, leased: &FleetOutcome) -> Vec<String> {
    let (nodes, offered) = PAPER;
    let capacity = scenario.quota.capacity();
    let share = capacity / (2 * nodes);
    // A server renews a key once in the lifetime of a lease, or whenever its share is spent.
    let spent = bound(&scenario.quota, Ticks::from_secs(1)).saturating_sub(capacity) / share.max(1);
    let renewed = nodes * 1_000_000 / scenario.lease.1.as_micros().max(1);
    // If demand exceeds the limit, a server also asks about forty times a second for units that have become available.
    let given = bound(&scenario.quota, Ticks::from_secs(1)).saturating_sub(capacity);
    let scarce = if offered > given { nodes * 40 } else { 0 };
    let calls = if share < 2 { offered } else { spent.max(renewed).max(scarce).min(offered) };
    let breaks = match (share < 2, calls > STORE_REQUESTS) {
        (true, _) => format!(
            "the size of a lease: half of {capacity} units among {nodes} servers is less than 2 each, so every request asks the store; give the limit a larger burst, or fewer servers"
        ),
        (false, true) => {
            "the store: its processor, at so many draws for one key; give leases more time or a larger share"
                .to_owned()
        }
        (false, false) => format!(
            "the number of such keys: one store decides about {STORE_REQUESTS} requests a second, so {} keys like the first are its end; then add shards",
            STORE_REQUESTS / calls.max(1)
        ),
    };
    vec![
        format!(
            "on paper, with {nodes} servers and {offered} requests a second: about {calls} draws a second for a key that is asked about by all (here {})",
            a_second(leased.calls, scenario.time)
        ),
        format!("what would not hold first is {breaks}"),
    ]
}
