//! Compiles the `overload:` section of a file into a [`Plan`]. It is pure, and reports every problem with its
//! position and what would be accepted, like the policy compiler.

use tollgate::policy::source::{
    Fields, Node, Position, RATES, Reading, Report, Tree, conditions, duration, percentage, quoted, read,
};
use tollgate::policy::{Findings, Mode, Problem};
use tollgate::rate::{QuotaError, Rate};
use tollgate::time::{TICKS_PER_SECOND, Ticks};

use crate::document::{FleetScope, FleetSettings, LIMIT_MAX, LimitSettings, QUEUE_MAX, QueueSettings};
use crate::fleet::FleetShedder;
use crate::priority::{Priority, Rule, Rules};
use crate::rate::RateSettings;
use crate::statistics::scaled;
use crate::worker::WorkerSettings;

/// Maximum number of priority rules.
pub const PRIORITY_RULES_MAX: usize = 1_000;
const SECTION: &str = "a table with some of priorities, fleet, worker, concurrency, rate, queue";
/// The longest time of any setting.
const TIME_MAX: Ticks = Ticks::from_secs(3_600);

/// The compiled `overload:` section. A controller that it does not mention is not active.
#[derive(Debug, Default)]
pub struct Plan {
    /// The rules that classify requests.
    pub rules: Rules,
    /// The fleet shedder.
    pub fleet: Option<FleetSettings>,
    /// The worker shedder.
    pub worker: Option<WorkerSettings>,
    /// The adaptive concurrency limit.
    pub concurrency: Option<LimitSettings>,
    /// The adaptive rate.
    pub rate: Option<RateSettings>,
    /// The queue of requests that wait for a permit. It requires `concurrency`.
    pub queue: Option<QueueSettings>,
}

impl Plan {
    /// Compiles a file that has nothing but an `overload:` section; `source_name` is how findings call it.
    ///
    /// ```
    /// use tollgate_overload::Plan;
    /// let findings = Plan::compile("overload.yaml", b"overload: {worker: {shed_above: 120%}}").unwrap_err();
    /// assert_eq!(
    ///     findings.to_string(),
    ///     "overload.yaml:1:33: overload.worker.shed_above: 120% is out of range; accepted: a percentage from 1% to 99%"
    /// );
    /// ```
    ///
    /// # Errors
    /// Every problem at once, warnings among them.
    pub fn compile(source_name: &str, bytes: &[u8]) -> Result<(Plan, Findings), Findings> {
        let mut report = Report::new(source_name);
        let plan = read(bytes, Reading::OWN, &mut report).and_then(|root| {
            let fields = Fields::of(&root, "", "a table with `overload:`", &mut report)?;
            fields.only(&["overload"], &mut report);
            let Some(node) = fields.get("overload") else {
                report.error(root.at, "overload", Problem::new("missing", SECTION));
                return None;
            };
            Plan::read(node, &mut report)
        });
        match plan {
            Some(plan) if report.errors() == 0 => Ok((plan, report.into_findings())),
            _ => Err(report.into_findings()),
        }
    }

    /// Reads the section of a file that has others. Problems go to the report.
    #[doc(hidden)]
    pub fn read(node: &Node, report: &mut Report) -> Option<Plan> {
        let fields = Fields::of(node, "overload", SECTION, report)?.within("overload");
        fields.only(&["priorities", "fleet", "worker", "concurrency", "rate", "queue"], report);
        let plan = Plan {
            rules: rules(fields, report),
            fleet: fleet(fields, report),
            worker: worker(fields, report),
            concurrency: concurrency(fields, report),
            rate: adaptive_rate(fields, report),
            queue: queue(fields, report),
        };
        if fields.has("queue") && !fields.has("concurrency") {
            let problem = Problem::new(
                "requests wait for a permit, but no concurrency limit is set",
                "`concurrency:` beside it",
            );
            report.error(fields.key_position("queue"), "overload.queue", problem);
        }
        Some(plan)
    }
}

fn rules(fields: Fields<'_>, report: &mut Report) -> Rules {
    let accepted = "a list of rules, such as `- {when: {path: /v1/charges*}, priority: critical}`";
    let Some(node) = fields.get("priorities") else { return Rules::default() };
    let Tree::List(nodes) = &node.tree else {
        let problem = Problem::new(format!("is {}", node.kind()), accepted);
        report.error(node.at, "overload.priorities", problem);
        return Rules::default();
    };
    if nodes.len() > PRIORITY_RULES_MAX {
        let problem = Problem::new(format!("{} rules", nodes.len()), format!("at most {PRIORITY_RULES_MAX}"));
        report.error(node.at, "overload.priorities", problem);
        return Rules::default();
    }
    let mut rules = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        report.enter(format!("overload.priorities[{index}]"), None);
        rules.extend(rule(node, report));
    }
    report.leave_limit();
    Rules::new(rules)
}

fn rule(node: &Node, report: &mut Report) -> Option<Rule> {
    let fields = Fields::of(node, "", "a table such as {when: {plan: test}, priority: test}", report)?;
    fields.only(&["when", "priority"], report);
    let words = Priority::ALL.map(|priority| (priority.as_str(), priority));
    if !fields.has("priority") {
        report.error(node.at, "priority", Problem::new("missing", "critical, write, read, test"));
    }
    if !fields.has("when") {
        let accepted = "a table such as {path: /v1/charges*}, or a CEL expression";
        report.error(node.at, "when", Problem::new("missing", accepted));
    }
    Some(Rule { when: conditions(fields, report), priority: fields.choice("priority", &words, report)? })
}

/// The table of one controller. An empty one (`worker:`) means the defaults.
fn table<'n>(
    fields: Fields<'n>,
    name: &'static str,
    within: &'static str,
    known: &[&str],
    report: &mut Report,
) -> Option<Fields<'n>> {
    static NOTHING: Node = Node { at: Position { line: 0, column: 0 }, tree: Tree::Table(Vec::new()) };
    let node = fields.get(name)?;
    let node = if matches!(node.tree, Tree::Empty) { &NOTHING } else { node };
    let accepted = format!("a table with some of {}", known.join(", "));
    let fields = Fields::of(node, within, &accepted, report)?.within(within);
    fields.only(known, report);
    Some(fields)
}

fn fleet(fields: Fields<'_>, report: &mut Report) -> Option<FleetSettings> {
    let known = ["capacity", "reserve", "scope", "mode"];
    let fields = table(fields, "fleet", "overload.fleet", &known, report)?;
    let reserve = share(fields, "reserve", (1, 990), report).unwrap_or(200);
    let scopes = [("fleet", FleetScope::Fleet), ("node", FleetScope::Node)];
    let scope = fields.choice("scope", &scopes, report).unwrap_or_default();
    let mode = fields.choice("mode", &Mode::NAMED, report).unwrap_or_default();
    let settings = FleetSettings { capacity: rate_of(fields, "capacity", report)?, reserve, scope, mode };
    // An invalid quota is reported here, so that the shedder of a compiled plan can be built.
    if let Err(error) = FleetShedder::new(settings.clone()) {
        let problem = match error {
            QuotaError::NoBurst => Problem::new(
                "less than one request at once is not reserved",
                "a larger capacity or burst, or a smaller reserve",
            ),
            error => Problem::new(error.to_string(), RATES),
        };
        report.error(fields.place("capacity"), "overload.fleet.capacity", problem);
    }
    Some(settings)
}

fn worker(fields: Fields<'_>, report: &mut Report) -> Option<WorkerSettings> {
    let known = ["shed_above", "restore_below", "queue_delay", "shed_over", "restore_over", "mode"];
    let fields = table(fields, "worker", "overload.worker", &known, report)?;
    let default = WorkerSettings::default();
    let settings = WorkerSettings {
        shed_above: share(fields, "shed_above", (10, 990), report).unwrap_or(default.shed_above),
        restore_below: share(fields, "restore_below", (10, 990), report).unwrap_or(default.restore_below),
        queue_delay: time(fields, "queue_delay", Ticks::from_millis(1), report)
            .unwrap_or(default.queue_delay),
        shed_over: time(fields, "shed_over", Ticks::from_secs(1), report).unwrap_or(default.shed_over),
        restore_over: time(fields, "restore_over", Ticks::from_secs(1), report)
            .unwrap_or(default.restore_over),
        mode: fields.choice("mode", &Mode::NAMED, report).unwrap_or_default(),
    };
    if settings.restore_below >= settings.shed_above {
        let message = "not below shed_above: it would shed and restore in turn";
        let problem = Problem::new(message, format!("less than {}", percent(settings.shed_above)));
        report.error(fields.place("restore_below"), "overload.worker.restore_below", problem);
    }
    if settings.restore_over < settings.shed_over {
        let problem = Problem::new(
            "quicker than shed_over: traffic that comes back at once sheds again",
            "at least as long as shed_over",
        );
        report.warning(fields.place("restore_over"), "overload.worker.restore_over", problem);
    }
    Some(settings)
}

fn concurrency(fields: Fields<'_>, report: &mut Report) -> Option<LimitSettings> {
    let known = ["min", "initial", "max", "window", "timeout", "mode"];
    let fields = table(fields, "concurrency", "overload.concurrency", &known, report)?;
    let default = LimitSettings::default();
    let mut limit = |name: &str, otherwise: u32| {
        let given = fields.count(name, u64::from(LIMIT_MAX), report);
        if given == Some(0) {
            let problem = Problem::new("0 admits no request", format!("1 to {LIMIT_MAX}"));
            report.error(fields.place(name), &fields.path(name), problem);
        }
        given.and_then(|count| u32::try_from(count).ok()).filter(|&count| count > 0).unwrap_or(otherwise)
    };
    let min = limit("min", default.min);
    let max = limit("max", default.max.max(min));
    let initial = limit("initial", default.initial.clamp(min, max.max(min)));
    for (name, is_wrong, accepted) in [
        ("max", max < min, format!("at least min, {min}")),
        ("initial", max >= min && !(min..=max).contains(&initial), format!("{min} to {max}")),
    ] {
        if is_wrong {
            let problem = Problem::new("not between min and max", accepted);
            report.error(fields.place(name), &fields.path(name), problem);
        }
    }
    let window = time(fields, "window", Ticks::from_millis(100), report).unwrap_or(default.window);
    Some(LimitSettings {
        min,
        initial,
        max,
        window,
        window_max: default.window_max.max(window),
        timeout: time(fields, "timeout", Ticks::from_millis(1), report).unwrap_or(default.timeout),
        mode: fields.choice("mode", &Mode::NAMED, report).unwrap_or_default(),
        ..default
    })
}

fn adaptive_rate(fields: Fields<'_>, report: &mut Report) -> Option<RateSettings> {
    let known = ["target", "min", "initial", "max", "window", "mode"];
    let fields = table(fields, "rate", "overload.rate", &known, report)?;
    let default = RateSettings::default();
    if !fields.has("target") {
        let problem = Problem::new("missing", "the latency to keep to, such as 100ms");
        report.error(fields.place("target"), "overload.rate.target", problem);
    }
    let mut per_second = |name: &str, otherwise: u64| {
        if !fields.has(name) {
            return otherwise;
        }
        let rate = rate_of(fields, name, report);
        rate.map_or(otherwise, |rate| {
            scaled(rate.units(), TICKS_PER_SECOND, rate.period().as_micros()).max(1)
        })
    };
    let min = per_second("min", default.min);
    let max = per_second("max", default.max.max(min));
    let initial = per_second("initial", default.initial.clamp(min, max.max(min)));
    if max < min || !(min..=max).contains(&initial) {
        let problem =
            Problem::new("not min <= initial <= max", format!("an initial rate from {min}/s to {max}/s"));
        report.error(fields.place("initial"), "overload.rate.initial", problem);
    }
    Some(RateSettings {
        target: time(fields, "target", Ticks::from_millis(1), report).unwrap_or(default.target),
        min,
        initial,
        max,
        // A fiftieth of the range per window, so that any rate is reached within about a minute.
        step: (max.min(initial.saturating_mul(10)) / 50).max(1),
        window: time(fields, "window", Ticks::from_millis(100), report).unwrap_or(default.window),
        mode: fields.choice("mode", &Mode::NAMED, report).unwrap_or_default(),
        ..default
    })
}

fn queue(fields: Fields<'_>, report: &mut Report) -> Option<QueueSettings> {
    let known = ["size", "target", "interval", "mode"];
    let fields = table(fields, "queue", "overload.queue", &known, report)?;
    let default = QueueSettings::default();
    let size = fields.count("size", QUEUE_MAX as u64, report);
    let target = time(fields, "target", Ticks::from_millis(1), report).unwrap_or(default.target);
    let interval = time(fields, "interval", Ticks::from_millis(10), report).unwrap_or(default.interval);
    if interval < target + target {
        let problem =
            Problem::new("too short to tell a burst from a standing queue", "at least twice the target");
        report.error(fields.place("interval"), "overload.queue.interval", problem);
    }
    Some(QueueSettings {
        size: size.and_then(|size| usize::try_from(size).ok()),
        target,
        interval,
        mode: fields.choice("mode", &Mode::NAMED, report).unwrap_or_default(),
    })
}

/// A required field that is a rate.
fn rate_of(fields: Fields<'_>, name: &str, report: &mut Report) -> Option<Rate> {
    if !fields.has(name) {
        report.error(fields.place(name), &fields.path(name), Problem::new("missing", RATES));
        return None;
    }
    let written = fields.text(name, RATES, report)?;
    let checked = written
        .parse::<Rate>()
        .and_then(|rate| rate.checked().map_err(|error| Problem::new(error.to_string(), RATES)));
    match checked {
        Ok(rate) => Some(rate),
        Err(problem) => {
            report.error(fields.place(name), &fields.path(name), problem);
            None
        }
    }
}

/// A field that is a percentage within bounds, in thousandths.
fn share(fields: Fields<'_>, name: &str, (least, most): (u64, u64), report: &mut Report) -> Option<u64> {
    let accepted = format!("a percentage from {} to {}", percent(least), percent(most));
    let written = fields.text(name, &accepted, report)?;
    let problem = match percentage(written.trim()).map(|millionths| u64::from(millionths) / 1_000) {
        Some(share) if (least..=most).contains(&share) => return Some(share),
        Some(_) => Problem::new(format!("{} is out of range", quoted(written)), accepted),
        None => Problem::new(format!("{} is not a percentage", quoted(written)), accepted),
    };
    report.error(fields.place(name), &fields.path(name), problem);
    None
}

/// A field that is a time of at least `least`.
fn time(fields: Fields<'_>, name: &str, least: Ticks, report: &mut Report) -> Option<Ticks> {
    let accepted = format!("a time from {} ms to 1 h, such as 100ms or 5s", least.ceil_millis());
    let written = fields.text(name, &accepted, report)?;
    let problem = match duration(written.trim()) {
        Ok(ticks) if (least..=TIME_MAX).contains(&ticks) => return Some(ticks),
        Ok(_) => Problem::new(format!("{} is out of range", quoted(written)), accepted),
        Err(problem) => problem,
    };
    report.error(fields.place(name), &fields.path(name), problem);
    None
}

fn percent(thousandths: u64) -> String {
    if thousandths.is_multiple_of(10) {
        format!("{}%", thousandths / 10)
    } else {
        format!("{}.{}%", thousandths / 10, thousandths % 10)
    }
}
