//! Every metric and label: its name, its meaning, and the values that a label may have. Values come from the policy and
//! from closed lists, never from a request.

use tollgate::{Decision, Enforcement, LimitStatus, Reason, Source, Verdict};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
}

/// Declares each metric, and `ALL` in the same order.
macro_rules! metrics {
    ($($name:ident: $kind:ident $text:literal, $help:literal;)*) => {
        $(pub(crate) static $name: Metric = Metric { name: $text, help: $help, kind: MetricKind::$kind };)*

        /// All metrics, in the order in which they are shown. A metric without a reporter in this process is shown
        /// without numbers.
        pub(crate) static ALL: [&Metric; [$($text),*].len()] = [$(&$name),*];
    };
}

metrics! {
    BUILD: Gauge "tollgate_build_info", "The version that runs, as a label of the number 1.";
    DECISIONS: Counter "tollgate_decisions_total",
        "Decisions, by the verdict sent to the caller and by protocol.";
    WITHOUT_LIMIT: Counter "tollgate_decisions_without_limit_total",
         "Requests that passed because no limit applies to their attributes, by protocol.";
    UNDECLARED: Counter "tollgate_undeclared_attributes_total",
         "Attributes that callers sent and the policy does not declare, by protocol.";
    LIMIT_DECISIONS: Counter "tollgate_limit_decisions_total",
         "Answers of single limits, by outcome, source and protocol.";
    NEAR_LIMIT: Counter "tollgate_limit_near_total",
        "Requests that a limit admitted and after which less than a fifth of it remained.";
    DURATION: Histogram "tollgate_decision_duration_seconds",
         "Time from a complete request to its answer, by protocol; of one request in sixteen where a protocol is fast.";
    RETRY_AFTER: Histogram "tollgate_retry_after_seconds", "The retry delay sent to denied callers.";
    CONNECTIONS: Gauge "tollgate_connections_open",  "Connections that are open now, by protocol.";
    POLICY_LIMITS: Gauge "tollgate_policy_limits",
        "Limits of the active policy, or rules of another program's file.";
    RELOADS: Counter "tollgate_policy_reloads_total", "Attempts to activate another policy, by result.";
    RELOAD_OK: Gauge "tollgate_policy_last_reload_successful",
        "1 unless the last attempt to activate another policy failed, so that an older one decides.";
    POLICY_SINCE: Gauge "tollgate_policy_loaded_timestamp_seconds",
        "When the active policy was activated, in seconds since 1970.";
    CALLERS: Gauge "tollgate_callers", "Callers that the callers file knows.";
    CALLERS_OK: Gauge "tollgate_callers_last_reload_successful",
        "1 unless the callers file on disk is wrong, so that those of an older one are known.";
    STORE_KEYS: Gauge "tollgate_store_keys",
        "Keys whose counter matters still; counted at most every ten seconds.";
    STORE_OVERFLOW: Gauge "tollgate_store_overflow_keys",
        "Counters that new keys share because the store is, or was, full; counted at most every ten seconds.";
    STORE_BYTES: Gauge "tollgate_store_bytes", "Bytes that counters take.";
    STORE_CAPACITY: Gauge "tollgate_store_capacity_bytes", "Bytes that counters may take.";
    STORE_CALLS: Counter "tollgate_store_calls_total", "Script calls that were sent to the shared store.";
    STORE_REQUESTS: Counter "tollgate_store_requests_total",
        "Requests that were decided in calls to the shared store; a call decides one or many.";
    STORE_DURATION: Histogram "tollgate_store_call_duration_seconds",
        "How long a call to the shared store took, until its answer came.";
    STORE_FAILURES: Counter "tollgate_store_failures_total",
        "Calls to the shared store that were not answered, and requests that were not sent, by class.";
    STORE_CONNECTIONS: Counter "tollgate_store_connections_total",
        "Attempts to connect to the shared store, by result.";
    STORE_BREAKER: Gauge "tollgate_store_breaker",
        "1 for the state that a shard's breaker is in, and 0 for the others.";
    STORE_SHARDS: Gauge "tollgate_store_shards", "Shards of the shared store, by the state of their breaker.";
    STORE_OPENED: Counter "tollgate_store_breaker_opened_total", "How often a shard's breaker opened.";
    STORE_AWAY: Gauge "tollgate_store_away_seconds",
        "How long a shard has been failing; 0 for one that is well.";
    STORE_IN_FLIGHT: Gauge "tollgate_store_in_flight",
        "Requests that are under way to a shard, or wait to be.";
    STORE_OUTAGE: Counter "tollgate_store_outage_seconds_total",
        "Seconds in which at least one shard of the shared store did not serve.";
    STORE_SLOTS_UNSERVED: Gauge "tollgate_store_slots_unserved",
        "Slots of the cluster that no node answered for in the last 10 seconds, such as half-migrated ones.";
    STORE_CORRECTIONS: Gauge "tollgate_store_corrections",
        "Refunds to the shared store that wait to be sent.";
    LEASE_KEYS: Gauge "tollgate_lease_keys",
        "Keys of which units are held ahead of time, or a denial is remembered.";
    LEASE_HELD: Gauge "tollgate_lease_held_units",
        "Units drawn from the shared store that are not spent yet.";
    LEASE_UNITS: Counter "tollgate_lease_units_total",
        "Units drawn from the shared store ahead of time, given back to it, and such as could not go back or may have been lost, by result.";
    LIMIT_LEASED: Gauge "tollgate_limit_leased_keys",
        "Keys of a limit that are asked about so often that units of them are drawn ahead of time.";
    LIMIT_HELD: Gauge "tollgate_limit_held_units",
        "Units of a limit's keys that were drawn from the shared store and are not spent yet.";
    STORE_DEFERRED: Gauge "tollgate_store_debts",
        "Counters whose units were admitted without the shared store, and are taken from it when it is back.";
    STORE_SETTLED: Counter "tollgate_store_debts_settled_total",
        "Counters reconciled with the shared store after an outage, and counters that were not, or perhaps not, by result.";
    STORE_OPEN: Counter "tollgate_store_open_seconds_total",
        "Seconds in which limits let everybody pass because the shared store was away.";
    STORE_NODES: Gauge "tollgate_store_nodes",
        "Servers that share the store, as this one knows; 0 while it does not.";
    RLQS_STREAMS: Gauge "tollgate_rlqs_streams", "Envoys that are connected to be assigned quotas.";
    RLQS_BUCKETS: Gauge "tollgate_rlqs_buckets", "Different buckets that Envoys report about.";
    RLQS_SUBSCRIPTIONS: Gauge "tollgate_rlqs_subscriptions",
        "Buckets that Envoys report about, each counted once for every Envoy.";
    RLQS_ASSIGNED: Gauge "tollgate_rlqs_assigned_rate",
        "Requests a second that are assigned to Envoys, over all buckets that a limit holds back.";
    RLQS_OWED: Gauge "tollgate_rlqs_owed_units",
        "Units that Envoys used and that counters did not have; assignments are lower until they are paid.";
    RLQS_REPORTED: Counter "tollgate_rlqs_reported_requests_total",
        "Requests that Envoys reported, by what they did with them.";
    RLQS_ASSIGNMENTS: Counter "tollgate_rlqs_assignments_total", "Assignments that were sent to Envoys.";
    RLQS_ABANDONED: Counter "tollgate_rlqs_abandoned_total",
        "Unused buckets that an Envoy was instructed to abandon.";
    GATEWAY_ANSWERS: Counter "tollgate_gateway_answers_total",
        "Answers of upstreams that the gateway handed on, by class of status.";
    GATEWAY_FAILURES: Counter "tollgate_gateway_failures_total",
        "Requests that the gateway sent to an upstream without an answer, by kind: no connection, no place, refused, lost or late.";
    GATEWAY_RETRIES: Counter "tollgate_gateway_retries_total",
        "Requests that the gateway sent to an upstream after another attempt had failed.";
    GATEWAY_TUNNELS: Gauge "tollgate_gateway_tunnels", "Tunnels that are open now, such as WebSockets.";
    GATEWAY_UP: Gauge "tollgate_gateway_upstream_up",
        "1 for an upstream whose health checks pass, or that has none.";
    GATEWAY_ENDED: Counter "tollgate_gateway_connections_ended_total",
        "Connections of clients that the gateway ended for the sake of others, by reason.";
    GATEWAY_SLOW: Counter "tollgate_gateway_slow_bodies_total",
        "Bodies that the gateway ended because its client was too slow, by what it was slow at: its upload or an answer.";
    OUTBOUND_CALLS: Counter "tollgate_outbound_calls_total",
        "Calls that the outbound proxy let leave for a provider.";
    OUTBOUND_WAITED: Counter "tollgate_outbound_waited_total",
        "Calls among them that had to wait before they left.";
    OUTBOUND_WAIT_SECONDS: Counter "tollgate_outbound_wait_seconds_total",
        "How long those calls waited together.";
    OUTBOUND_REFUSED: Counter "tollgate_outbound_refused_total",
        "Calls that the outbound proxy refused, so that they never left.";
    OUTBOUND_THROTTLED: Counter "tollgate_outbound_throttled_total",
        "Calls that the provider refused because of a limit.";
    OUTBOUND_FAILED: Counter "tollgate_outbound_failed_total",
        "Calls to which the provider answered with an error of its own.";
    OUTBOUND_RETRIES: Counter "tollgate_outbound_retries_total", "Attempts of calls after the first.";
    OUTBOUND_WAITING: Gauge "tollgate_outbound_waiting",
        "Calls that wait now.";
    OUTBOUND_IN_FLIGHT: Gauge "tollgate_outbound_in_flight",
        "Calls that are under way now.";
    OUTBOUND_FROZEN: Gauge "tollgate_outbound_frozen",
        "Buckets of the provider to which no calls are sent now.";
    WAITING: Gauge "tollgate_waiting_requests",
        "Requests of the gateway that wait for their turn at a leaky bucket.";
    WAITS: Histogram "tollgate_wait_duration_seconds",
        "How long requests of the gateway have to wait for their turn at a leaky bucket.";
    OVERLOAD_LIMIT: Gauge "tollgate_overload_limit",
        "What a controller admits: places in flight, requests a second, or places in the line.";
    OVERLOAD_IN_FLIGHT: Gauge "tollgate_overload_in_flight",
        "Requests in flight, or in the line, as a controller counts them.";
    OVERLOAD_QUEUE: Gauge "tollgate_overload_queue_estimate",
        "How many of the requests in flight are estimated to wait behind the gateway.";
    OVERLOAD_UTILISATION: Gauge "tollgate_overload_utilisation_permille",
        "How busy the worker is, in thousandths.";
    OVERLOAD_LEVEL: Gauge "tollgate_overload_level_permille",
        "How much is shed, in thousandths of a class: 1500 is all test traffic and half of the reads.";
    OVERLOAD_REFUSED: Counter "tollgate_overload_refused_total",
        "Requests that a controller of overload refused, by priority.";
    OVERLOAD_WAITED: Counter "tollgate_overload_waited_total",
        "Requests that got a place after a wait in the line, by priority.";
    OVERLOAD_WAIT: Counter "tollgate_overload_wait_seconds_total",
        "How long they waited in all, by priority.";
    OVERLOAD_WOULD_REFUSE: Counter "tollgate_overload_would_refuse_total",
        "Requests that a controller of overload would have refused, had it not been in shadow.";
    OVERLOAD_REASON: Gauge "tollgate_overload_reason",
        "1 for the reason why a controller last changed what it admits.";
    OVERLOAD_CHANGED: Gauge "tollgate_overload_changed_timestamp_seconds",
        "When a controller last changed what it admits, in seconds since 1970.";
    OVERLOAD_MODE: Gauge "tollgate_overload_mode", "1 for the mode in which a controller of overload is.";
    OVERLOAD_KILLED: Gauge "tollgate_overload_killed",
        "1 while the kill switch of a controller of overload is on.";
    KILL_SWITCHES: Gauge "tollgate_kill_switches",
        "Kill switches that are on now; each turns a limit, or all of them, off.";
    UNSHARED: Gauge "tollgate_operator_state_unshared",
        "Blocks and overrides of this server that the shared store does not have yet, so that other servers do not know them.";
    SNAPSHOT_SINCE: Gauge "tollgate_snapshot_timestamp_seconds",
        "When counters were last written to disk, in seconds since 1970.";
    SNAPSHOTS: Counter "tollgate_snapshots_total", "Attempts to write counters to disk, by result.";
    FOLDED: Gauge "tollgate_metrics_folded_limits",
        "Limits without series of their own, counted together under one name since there are too many.";
    SPANS: Counter "tollgate_trace_spans_total", "Spans of decisions, by what became of them.";
    LOG_LINES: Counter "tollgate_log_lines_lost_total",
        "Lines of the log that were dropped because their reader was too slow.";
    PROCESS_MEMORY: Gauge "process_resident_memory_bytes", "Resident memory of the process.";
    PROCESS_FILES: Gauge "process_open_fds", "Open file descriptors of the process.";
    PROCESS_FILES_MAX: Gauge "process_max_fds", "Most file descriptors that the process may have open.";
    PROCESS_START: Gauge "process_start_time_seconds", "When the process started, in seconds since 1970.";
}

/// Names of labels.
pub(crate) mod label {
    pub(crate) const LIMIT: &str = "limit";
    pub(crate) const OUTCOME: &str = "outcome";
    pub(crate) const SOURCE: &str = "source";
    pub(crate) const WIRE: &str = "wire";
    pub(crate) const RESULT: &str = "result";
    pub(crate) const VERSION: &str = "version";
    pub(crate) const CLASS: &str = "class";
    pub(crate) const SHARD: &str = "shard";
    pub(crate) const STATE: &str = "state";
    pub(crate) const ROUTE: &str = "route";
    pub(crate) const UPSTREAM: &str = "upstream";
    pub(crate) const PROVIDER: &str = "provider";
    pub(crate) const CONTROLLER: &str = "controller";
    pub(crate) const PRIORITY: &str = "priority";
    pub(crate) const REASON: &str = "reason";
    pub(crate) const MODE: &str = "mode";
    /// The bound of a histogram bucket. The exposition format prescribes the name.
    pub(crate) const BOUND: &str = "le";
}

/// The label value for the limits without their own series.
pub(crate) const OTHERS: &str = "(others)";
pub(crate) use tollgate_compat::REQUEST_LIMIT;

/// The verdict sent to the caller, as a label value, in the order of [`verdict_index`].
pub(crate) const VERDICTS: [&str; 10] =
    ["allow", "wait", "deny", "never", "fault", "unavailable", "blocked", "shed", "forbidden", "penalty"];

/// Indexes of some of [`VERDICTS`].
pub(crate) const ALLOW: usize = 0;
pub(crate) const WAIT: usize = 1;
pub(crate) const DENY: usize = 2;
pub(crate) const FAULT: usize = 4;
pub(crate) const BLOCKED: usize = 6;
pub(crate) const SHED: usize = 7;
pub(crate) const FORBIDDEN: usize = 8;
pub(crate) const PENALTY: usize = 9;

/// The index of a decision in [`VERDICTS`].
pub(crate) fn verdict_index(decision: &Decision) -> usize {
    match (decision.verdict(), decision.reason()) {
        (Verdict::Allow, _) => ALLOW,
        (Verdict::Wait(_), _) => WAIT,
        (_, Some(Reason::Unavailable)) => 5,
        (_, Some(Reason::Fault)) => FAULT,
        (_, Some(Reason::Blocked)) => BLOCKED,
        (_, Some(Reason::Penalty)) => PENALTY,
        (Verdict::Deny { .. }, _) => DENY,
        (Verdict::Never, _) => 3,
        (Verdict::Forbidden, _) => FORBIDDEN,
    }
}

/// The outcome of one limit, as a label value. The last two are those of limits in shadow. The order is that of
/// [`outcome_index`].
pub(crate) const OUTCOMES: [&str; 6] = ["allow", "wait", "deny", "never", "would_allow", "would_deny"];
/// Indexes of some of [`OUTCOMES`].
pub(crate) const ALLOWED: usize = 0;
pub(crate) const DENIED: usize = 2;
pub(crate) const WOULD_ALLOW: usize = 4;
pub(crate) const WOULD_DENY: usize = 5;
/// Indexes of the usual outcomes: those of an enforced limit, and those of a limit in shadow.
pub(crate) const USUAL: [[usize; 2]; 2] = [[ALLOWED, DENIED], [WOULD_ALLOW, WOULD_DENY]];

/// The index of an outcome in [`OUTCOMES`].
pub(crate) const fn outcome_index(status: &LimitStatus<'_>) -> usize {
    match (status.enforcement, status.outcome.verdict) {
        (Enforcement::Enforced, Verdict::Allow) => ALLOWED,
        (Enforcement::Enforced, Verdict::Wait(_)) => 1,
        (Enforcement::Enforced, Verdict::Deny { .. } | Verdict::Forbidden) => DENIED,
        (Enforcement::Enforced, Verdict::Never) => 3,
        (Enforcement::Shadow, Verdict::Allow | Verdict::Wait(_)) => WOULD_ALLOW,
        (Enforcement::Shadow, Verdict::Deny { .. } | Verdict::Never | Verdict::Forbidden) => WOULD_DENY,
    }
}

/// Every source, in the order of [`source_index`].
pub(crate) const SOURCES: [Source; 10] = [
    Source::Exact,
    Source::Overflow,
    Source::Lease,
    Source::DenyCache,
    Source::Local,
    Source::Open,
    Source::Closed,
    Source::Full,
    Source::Policy,
    Source::Penalty,
];

/// The index of a source in [`SOURCES`].
pub(crate) const fn source_index(source: Source) -> usize {
    match source {
        Source::Exact => 0,
        Source::Overflow => 1,
        Source::Lease => 2,
        Source::DenyCache => 3,
        Source::Local => 4,
        Source::Open => 5,
        Source::Closed => 6,
        Source::Full => 7,
        Source::Policy => 8,
        Source::Penalty => 9,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Metric names are unique, each name shows its kind as the format requires, and each metric has a help text.
    #[test]
    fn names_are_unique_and_say_their_kind() {
        let names: HashSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
            let is_time = metric.name.ends_with("_seconds") || metric.name.ends_with("_seconds_total");
            assert_eq!(is_time, metric.name.contains("seconds"), "{}", metric.name);
            assert!(
                metric.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    /// Each source has its own index.
    #[test]
    fn sources_are_where_their_index_says() {
        for (index, source) in SOURCES.into_iter().enumerate() {
            assert_eq!(source_index(source), index);
        }
    }
}
