//! The report of a replay. Shares are of requests or of keys; instants are RFC 3339 in UTC.

use serde::Serialize;
use tollgate::Timestamp;

/// The whole report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The requests that were read.
    pub input: InputReport,
    /// The assumed reaction of clients to a denial: `gone`, `retry` or `obey`.
    pub clients: &'static str,
    /// The same in words.
    pub clients_meaning: &'static str,
    /// All requests together.
    pub totals: Totals,
    /// Each limit, in the order of the policy.
    pub limits: Vec<LimitReport>,
    /// The keys that were denied most.
    pub top: Vec<TouchedKey>,
    /// Limits that denied the same requests.
    pub overlaps: Vec<Overlap>,
    /// Requests and denials by weekday and hour, in UTC.
    pub week: Week,
    /// The cost of counting in a shared store.
    pub store: StoreCost,
    /// The decisions of the other policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Comparison>,
    /// Memory that the replay took.
    pub memory: MemoryUse,
    /// Facts that the log lacks, with the assumptions made instead.
    pub notes: Vec<String>,
}

/// The requests that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InputReport {
    /// The files, each with its format.
    pub files: Vec<InputFile>,
    /// All lines that were not empty.
    pub lines: u64,
    /// Files that ended early, each with the reason and what was read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
    /// Lines that could not be read.
    pub bad_lines: u64,
    /// The first of them, each with the reason.
    pub bad_examples: Vec<String>,
    /// Records that are no request that a policy could decide about, such as a path that no server accepts.
    pub undecidable: u64,
    /// The first of them, each with the reason.
    pub undecidable_examples: Vec<String>,
    /// How long a record waited for earlier ones, in milliseconds.
    pub reorder_window_ms: u64,
    /// Records that came later than that. They were decided when they came.
    pub late: u64,
    /// Records whose stamp is a whole second.
    pub whole_seconds: u64,
}

/// One file of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputFile {
    /// Its name.
    pub name: String,
    /// Its format, as found.
    pub format: String,
    /// Its lines.
    pub lines: u64,
}

/// A number that whole-second stamps leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The fewest, wherever in their seconds the requests came.
    pub low: u64,
    /// The most.
    pub high: u64,
}

impl Range {
    /// The range of these numbers.
    pub(super) fn of<const N: usize>(numbers: [u64; N]) -> Self {
        let low = numbers.into_iter().min().unwrap_or_default();
        Self { low, high: numbers.into_iter().max().unwrap_or_default() }
    }
}

/// Denials among some requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Denied {
    /// The requests.
    pub requests: u64,
    /// How many of them were denied.
    pub denied: u64,
    /// `denied` in per cent.
    pub denied_percent: f64,
    /// Clients that were denied at least once.
    pub clients_touched: u64,
}

/// All requests together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Requests of the log that were decided.
    pub requests: u64,
    /// When the first came.
    pub from: String,
    /// When the last came.
    pub to: String,
    /// The time between them, in seconds.
    pub seconds: u64,
    /// Decisions: more than requests if clients come back.
    pub decisions: u64,
    /// Decisions that let the request pass.
    pub allowed: u64,
    /// Decisions that denied it.
    pub denied: u64,
    /// `denied` in per cent of the decisions.
    pub denied_percent: f64,
    /// The bounds of `denied`, where stamps are whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_range: Option<Range>,
    /// Whether the numbers of denials are an estimate: their bounds are not proven.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_range_estimated: bool,
    /// Clients: addresses, users, and values that the first limit counts by.
    pub clients: u64,
    /// Clients that were denied at least once.
    pub clients_touched: u64,
    /// `clients_touched` in per cent.
    pub clients_touched_percent: f64,
    /// The bounds of `clients_touched`, where stamps are whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients_touched_range: Option<Range>,
    /// The same of the touched clients.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_clients_range_estimated: bool,
    /// Requests that no limit matched.
    pub unlimited: u64,
    /// Requests denied because they are wrong themselves, such as a cost that cannot be computed.
    pub faults: u64,
    /// Requests that the live system had refused.
    pub already_refused: u64,
    /// The totals of the replay without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_refused: Option<Denied>,
    /// Requests that came back.
    pub retries: u64,
    /// How many of those passed then.
    pub retries_allowed: u64,
    /// Requests that still waited when the log ended.
    pub still_waiting: u64,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitReport {
    /// Its name.
    pub name: String,
    /// Its meaning.
    pub sentence: String,
    /// Whether it only counts. What it denies then is not among the totals.
    pub is_shadow: bool,
    /// Requests that it matched.
    pub requests: u64,
    /// How many of them it denied.
    pub denied: u64,
    /// `denied` in per cent.
    pub denied_percent: f64,
    /// The bounds of `denied`, where stamps are whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_range: Option<Range>,
    /// Whether the numbers of denials and of touched keys are an estimate: their bounds are not proven. Then they are
    /// readings of the log, and not the fewest and the most.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_range_estimated: bool,
    /// Denials of which it is the disclosed cause.
    pub cause: u64,
    /// Requests that it delayed, in the queue of a leaky bucket.
    pub delayed: u64,
    /// Keys that it counted.
    pub keys: u64,
    /// Keys that it denied at least once.
    pub touched: u64,
    /// `touched` in per cent.
    pub touched_percent: f64,
    /// The bounds of `touched`, where stamps are whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_range: Option<Range>,
    /// How long touched keys were denied in all, in milliseconds.
    pub denied_for_ms: DeniedFor,
    /// The minute with the most denials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_minute: Option<Minute>,
    /// The key with the most denials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_key: Option<TouchedKey>,
    /// The same limit at other sizes, with all other limits as they are.
    pub sizes: Vec<SizeReport>,
    /// The most units of each key in one window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peaks: Option<Peaks>,
    /// The smallest burst that would have denied no request at this rate, wherever in its second each came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_for_none: Option<u64>,
    /// The bounds of it, where stamps are whole seconds: with less than the lower one, at least one request is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_for_none_range: Option<Range>,
    /// Leases that one node would have acquired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<u64>,
}

/// How long keys were denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeniedFor {
    /// Half of the touched keys, at most.
    pub median: u64,
    /// 99 per cent of them, at most.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// A minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Minute {
    /// Its start.
    pub at: String,
    /// Its denials.
    pub denied: u64,
}

/// A key that was denied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TouchedKey {
    /// The limit.
    pub limit: String,
    /// The values that the limit counts by.
    pub key: String,
    /// Its requests.
    pub requests: u64,
    /// How many of them the limit denied.
    pub denied: u64,
    /// Its share of all denials of the limit, in per cent.
    pub share_percent: f64,
    /// How long it was denied in all, in milliseconds.
    pub denied_for_ms: u64,
    /// Where most of its denied requests went.
    pub route: Option<String>,
    /// The program that most of them came from.
    pub user_agent: Option<String>,
    /// Whether the first policy denied none of its requests; of keys that another policy newly denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_first_denial: Option<bool>,
}

/// A limit at another size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeReport {
    /// The factor, such as `0.5`.
    pub times: &'static str,
    /// The rate and burst, or the window's limit, at this size.
    pub quota: String,
    /// Denied requests.
    pub denied: u64,
    /// `denied` in per cent.
    pub denied_percent: f64,
    /// The bounds of `denied`, where stamps are whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_range: Option<Range>,
    /// Touched keys.
    pub touched: u64,
    /// `touched` in per cent.
    pub touched_percent: f64,
    /// The bounds of `touched`, where stamps are whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_range: Option<Range>,
}

/// The most units of each key in one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peaks {
    /// The length of a window in milliseconds; absent for requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// The maximum that the limit admits in a window.
    pub limit: u64,
    /// Half of the keys, at most.
    pub p50: u64,
    /// 90 per cent.
    pub p90: u64,
    /// 95 per cent.
    pub p95: u64,
    /// 99 per cent.
    pub p99: u64,
    /// 99.9 per cent.
    pub p99_9: u64,
    /// The highest.
    pub max: u64,
    /// Where the curve bends: the few keys above it are unlike the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<u64>,
    /// Keys whose peak is at most `to`, and more than that of the row before.
    pub histogram: Vec<Bar>,
}

/// One row of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bar {
    /// The highest peak of the row.
    pub to: u64,
    /// Its keys.
    pub keys: u64,
    /// Those of them that the limit denied a request. Only the page shows it.
    #[serde(skip)]
    pub touched: u64,
}

/// Two limits that denied the same requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// Their names.
    pub limits: [String; 2],
    /// Requests that both denied.
    pub denied: u64,
}

/// Numbers by weekday (from Monday) and hour, in UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Week {
    /// Decisions.
    pub requests: [[u64; 24]; 7],
    /// Denials.
    pub denied: [[u64; 24]; 7],
}

/// The cost of counting in a shared store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreCost {
    /// Calls if each decision asks the store: one for each decision that a limit counts. Many share a round trip.
    pub calls: u64,
    /// Calls if limits that can be leased are leased by one node: leases, and decisions of the other limits.
    pub calls_with_leases: u64,
    /// Leases that the node would have acquired, by the policy's lease or the default one. A lease is used up, or
    /// expires, before the next is acquired.
    pub leases: u64,
}

/// The decisions of another policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Denials by the other policy.
    pub denied: u64,
    /// `denied` in per cent.
    pub denied_percent: f64,
    /// Denials of each of its limits that denied.
    pub by_limit: Vec<(String, u64)>,
    /// Requests that only the other policy denies.
    pub newly_denied: Changed,
    /// The keys among them of which the first policy denied no request.
    pub first_denied: FirstDenied,
    /// Requests that only the first policy denies.
    pub freed: Changed,
    /// The result in a sentence, for a pull request.
    pub sentence: String,
    /// Whether the numbers are an estimate: stamps are whole seconds, and requests were spread evenly over them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_estimated: bool,
}

/// Keys that are denied for the first time: the first policy denied none of their requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FirstDenied {
    /// The keys.
    pub clients: u64,
    /// Their denied requests by route, the most frequent first.
    pub by_route: Vec<(String, u64)>,
}

/// Requests whose decision differs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Changed {
    /// The requests.
    pub requests: u64,
    /// The same in per cent of all.
    pub percent: f64,
    /// The keys that they belong to, in the policy that denies.
    pub clients: u64,
    /// By the limit that is the cause, in the policy that denies.
    pub by_limit: Vec<(String, u64)>,
    /// By route, the most frequent first.
    pub by_route: Vec<(String, u64)>,
    /// The keys with the most changes.
    pub top: Vec<TouchedKey>,
}

/// Memory that the replay took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Keys of all limits.
    pub keys: u64,
    /// Bytes for each of them, on average: statistics, counters, and the texts of denied keys.
    pub bytes_per_key: u64,
}

/// A share in per cent, to four decimals.
#[must_use]
#[expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "a number for people, at most a million"
)]
pub fn percent(part: u64, whole: u64) -> f64 {
    let millionths = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    u64::try_from(millionths).unwrap_or(u64::MAX) as f64 / 10_000.0
}

/// An instant in RFC 3339.
pub(super) fn written(at: Timestamp) -> String {
    let micros = i64::try_from(at.unix_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map(|at| at.to_string()).unwrap_or_default()
}
