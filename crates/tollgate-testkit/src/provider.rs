//! A provider of an API that counts calls and refuses those above its limits. It is written from the words of the
//! providers, without the arithmetic of Tollgate: logs of what it admitted, windows, and a bucket that leaks. Time is
//! in microseconds and comes from the caller, so that it serves in virtual time and behind a socket.

use std::collections::{HashMap, VecDeque};

const SECOND: u64 = 1_000_000;
/// A unit in a bucket, so that what leaks in a microsecond is a whole number.
const UNIT: u64 = 60 * SECOND;
/// How Shopify's GraphQL API refuses.
const THROTTLED: &str = r#""errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}]"#;

/// A rule of a provider.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: &'static str,
    pub counter: Counter,
    pub counts: Counts,
    /// Whether each route has a counter of its own.
    pub by_route: bool,
    /// Whether responses name it, refusals apart.
    pub announced: Announced,
}

/// Whether responses name a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    Always,
    /// As the secondary limits of GitHub.
    Never,
}

/// How a rule counts.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// At most `limit` in a window, which begins with the first call after the last window.
    FixedWindow { limit: u64, period: u64 },
    /// At most `limit` in any stretch of a period.
    AnyWindow { limit: u64, period: u64 },
    /// A bucket of `size` that leaks `per_minute`, steadily.
    LeakyBucket { size: u64, per_minute: u64 },
    /// At most `limit` calls in flight.
    InFlight { limit: u64 },
}

/// The unit that a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    Calls,
    Units,
    /// One of so many units of each call, such as the output of a model.
    OneIn(u64),
}

/// How a provider says how much is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Nothing but the status.
    Silent,
    /// `Retry-After` of refusals.
    RetryAfter,
    /// `RateLimit` and `RateLimit-Policy` of draft 11.
    Ietf,
    /// `RateLimit` of draft 07: the numbers of the tightest rule.
    Draft07,
    /// `X-RateLimit-*`, with an epoch by the provider's clock, and `Date`.
    Epoch,
    /// As GitHub: the same, with a resource. A primary limit refuses with 403 and no `Retry-After`, a secondary limit with
    /// `Retry-After`.
    Github,
    /// As Discord.
    Discord,
    /// As Shopify's REST API.
    Shopify,
    /// As Shopify's GraphQL API: 200, and points in the body.
    ShopifyGraphQl,
    /// As Riot Games: several windows in one field, and how much of each is used.
    Riot,
    /// As OpenAI: names, and durations of Go.
    GoDurations,
    /// As Anthropic: names, and instants of RFC 3339 by the provider's clock, and `Date`.
    Anthropic,
}

/// A call, as the provider sees it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub route: &'a str,
    pub units: u64,
}

/// The provider's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
    /// Whether a rule refused the call: each is a violation.
    pub is_refused: bool,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Admitted units with their instants, for windows of any beginning.
    log: VecDeque<(u64, u64)>,
    window_from: Option<u64>,
    /// Units in the window or in flight.
    used: u64,
    /// The content of the bucket, in parts of [`UNIT`], and when it was counted.
    level: u64,
    level_at: u64,
}

/// A provider: its rules, what it admitted, and what it refused.
#[derive(Debug)]
pub struct Provider {
    rules: Vec<Rule>,
    states: HashMap<(usize, String), State>,
    speech: Speech,
    /// How far its clock is ahead of the caller's.
    skew: i64,
    pub admitted: u64,
    pub admitted_units: u64,
    /// The calls of other tenants that it admitted.
    pub admitted_of_others: u64,
    /// The most calls that were in flight together.
    pub busiest: u64,
    /// When it refused calls.
    pub refused: Vec<u64>,
}

/// How much of a counter is left, when it is full again, and when a call fits.
struct Left {
    limit: u64,
    remaining: u64,
    full_in: u64,
    fits_in: u64,
    period: Option<u64>,
}

impl Counter {
    const fn limit(self) -> u64 {
        match self {
            Counter::FixedWindow { limit, .. }
            | Counter::AnyWindow { limit, .. }
            | Counter::InFlight { limit } => limit,
            Counter::LeakyBucket { size, .. } => size,
        }
    }

    /// Forgets what is over.
    fn settle(self, state: &mut State, now: u64) {
        match self {
            Counter::FixedWindow { period, .. } => {
                if state.window_from.is_some_and(|from| now >= from + period) {
                    (state.window_from, state.used) = (None, 0);
                }
            }
            Counter::AnyWindow { period, .. } => {
                while state.log.front().is_some_and(|(at, _)| now >= at + period) {
                    state.used -= state.log.pop_front().map_or(0, |(_, units)| units);
                }
            }
            Counter::LeakyBucket { per_minute, .. } => {
                let leaked = now.saturating_sub(state.level_at).saturating_mul(per_minute);
                state.level = state.level.saturating_sub(leaked);
                state.level_at = now;
            }
            Counter::InFlight { .. } => {}
        }
    }

    fn has_room(self, state: &State, units: u64) -> bool {
        match self {
            Counter::LeakyBucket { size, .. } => state.level + units * UNIT <= size * UNIT,
            _ => state.used + units <= self.limit(),
        }
    }

    fn take(self, state: &mut State, units: u64, now: u64) {
        match self {
            Counter::LeakyBucket { .. } => state.level += units * UNIT,
            Counter::AnyWindow { .. } => {
                state.log.push_back((now, units));
                state.used += units;
            }
            Counter::FixedWindow { .. } => {
                state.window_from.get_or_insert(now);
                state.used += units;
            }
            Counter::InFlight { .. } => state.used += units,
        }
    }

    fn left(self, state: &State, units: u64, now: u64) -> Left {
        let limit = self.limit();
        let (mut remaining, period) = (limit.saturating_sub(state.used), self.period());
        let (full_in, fits_in) = match self {
            Counter::FixedWindow { period, .. } => {
                let end = state.window_from.map_or(0, |from| (from + period).saturating_sub(now));
                (end, if remaining >= units { 0 } else { end })
            }
            Counter::AnyWindow { period, .. } => {
                let mut missing = units.saturating_sub(remaining);
                let mut fits = 0;
                for (at, units) in &state.log {
                    if missing == 0 {
                        break;
                    }
                    missing = missing.saturating_sub(*units);
                    fits = at + period - now;
                }
                (state.log.back().map_or(0, |(at, _)| at + period - now), fits)
            }
            Counter::LeakyBucket { size, per_minute } => {
                remaining = (size * UNIT).saturating_sub(state.level) / UNIT;
                let over = (state.level + units * UNIT).saturating_sub(size * UNIT);
                (state.level.div_ceil(per_minute), over.div_ceil(per_minute))
            }
            Counter::InFlight { .. } => (0, 0),
        };
        Left { limit, remaining, full_in, fits_in, period }
    }

    const fn period(self) -> Option<u64> {
        match self {
            Counter::FixedWindow { period, .. } | Counter::AnyWindow { period, .. } => Some(period),
            _ => None,
        }
    }
}

impl Provider {
    #[must_use]
    pub fn new(rules: Vec<Rule>, speech: Speech, skew: i64) -> Self {
        let states = HashMap::new();
        let (admitted, admitted_units, admitted_of_others, busiest) = (0, 0, 0, 0);
        let refused = Vec::new();
        Self { rules, states, speech, skew, admitted, admitted_units, admitted_of_others, busiest, refused }
    }

    /// Changes how a rule counts from now on. What it counted stays.
    pub fn change(&mut self, name: &str, counter: Counter) {
        for rule in self.rules.iter_mut().filter(|rule| rule.name == name) {
            rule.counter = counter;
        }
    }

    fn state(&mut self, index: usize, route: &str, now: u64) -> &mut State {
        let rule = &self.rules[index];
        let counted_as = match self.speech {
            _ if !rule.by_route => String::new(),
            Speech::Discord => discord_bucket(route),
            _ => route.to_owned(),
        };
        let key = (index, counted_as);
        let state = self.states.entry(key).or_default();
        rule.counter.settle(state, now);
        state
    }

    fn is_admitted(&mut self, asked: Asked<'_>, now: u64) -> bool {
        let rules = self.rules.clone();
        let each = || rules.iter().enumerate().map(|(index, rule)| (index, rule, rule.units(asked)));
        let has_room = each()
            .all(|(index, rule, units)| rule.counter.has_room(self.state(index, asked.route, now), units));
        if has_room {
            for (index, rule, units) in each() {
                let state = self.state(index, asked.route, now);
                rule.counter.take(state, units, now);
                let in_flight = if rule.is_in_flight() { state.used } else { 0 };
                self.busiest = self.busiest.max(in_flight);
            }
        }
        has_room
    }

    /// Another tenant of the same quota calls.
    pub fn call_of_other(&mut self, asked: Asked<'_>, now: u64) {
        self.admitted_of_others += u64::from(self.is_admitted(asked, now));
    }

    /// A call arrives.
    pub fn call(&mut self, asked: Asked<'_>, now: u64) -> Answer {
        let is_admitted = self.is_admitted(asked, now);
        if is_admitted {
            self.admitted += 1;
            self.admitted_units += asked.units;
        } else {
            self.refused.push(now);
        }
        let lefts: Vec<(Rule, Left)> = self
            .rules
            .clone()
            .into_iter()
            .enumerate()
            .map(|(index, rule)| {
                let units = rule.units(asked);
                let left = rule.counter.left(self.state(index, asked.route, now), units, now);
                (rule, left)
            })
            .collect();
        let counted: Vec<&(Rule, Left)> = lefts.iter().filter(|(rule, _)| rule.is_announced()).collect();
        let mut headers = self.numbers(&counted, asked.route, now.saturating_add_signed(self.skew));
        if !is_admitted {
            headers.extend(self.retry_after(&lefts, &counted));
        }
        let status = match self.speech {
            Speech::ShopifyGraphQl => 200,
            Speech::Github if !is_admitted => 403,
            _ if is_admitted => 200,
            _ => 429,
        };
        let start = if is_admitted { r#""data":{}"# } else { THROTTLED };
        let body = (self.speech == Speech::ShopifyGraphQl).then(|| points(&lefts, asked.units, start));
        Answer { status, headers, body, is_refused: !is_admitted }
    }

    /// The response to an admitted call has left.
    pub fn end(&mut self, asked: Asked<'_>, now: u64) {
        for index in 0..self.rules.len() {
            if self.rules[index].is_in_flight() {
                let state = self.state(index, asked.route, now);
                state.used = state.used.saturating_sub(1);
            }
        }
    }

    /// When a refused call may come back, if this server says so.
    fn retry_after(&self, lefts: &[(Rule, Left)], counted: &[&(Rule, Left)]) -> Option<(String, String)> {
        let announces = match self.speech {
            Speech::Silent | Speech::ShopifyGraphQl => false,
            Speech::Github => counted.iter().all(|(_, left)| left.remaining > 0),
            _ => true,
        };
        let wait = lefts.iter().map(|(_, left)| left.fits_in).max().unwrap_or(0);
        announces.then(|| ("retry-after".to_owned(), wait.div_ceil(SECOND).max(1).to_string()))
    }

    /// The fields that say how much is left. `theirs` is the present by the provider's clock.
    fn numbers(&self, counted: &[&(Rule, Left)], route: &str, theirs: u64) -> Vec<(String, String)> {
        let Some((_, tightest)) = counted.iter().min_by_key(|(_, left)| left.remaining) else {
            return Vec::new();
        };
        let Left { limit, remaining, full_in, .. } = *tightest;
        let date = ("date", http_date(theirs / SECOND));
        let of_epoch = || {
            let reset = (theirs + full_in).div_ceil(SECOND).to_string();
            let left = ("x-ratelimit-remaining", remaining.to_string());
            [date.clone(), ("x-ratelimit-limit", limit.to_string()), left, ("x-ratelimit-reset", reset)]
        };
        let of_github =
            [("x-github-request-id", "0C9F".to_owned()), ("x-ratelimit-resource", "core".to_owned())];
        match self.speech {
            Speech::Silent | Speech::RetryAfter | Speech::ShopifyGraphQl => Vec::new(),
            Speech::Ietf => fields(ietf(counted)),
            Speech::Draft07 => {
                let reset = full_in.div_ceil(SECOND);
                fields([("ratelimit", format!("limit={limit}, remaining={remaining}, reset={reset}"))])
            }
            Speech::Epoch => fields(of_epoch()),
            Speech::Github => fields(of_epoch().into_iter().chain(of_github)),
            // The global limit has no headers of its own.
            Speech::Discord => match counted.iter().find(|(rule, _)| rule.by_route) {
                Some((_, left)) => fields(discord(left, route)),
                None => Vec::new(),
            },
            Speech::Shopify => {
                fields([("x-shopify-shop-api-call-limit", format!("{}/{limit}", limit - remaining))])
            }
            Speech::Riot => fields(riot(counted)),
            Speech::GoDurations => {
                let field = |name: &str, number: &str| format!("x-ratelimit-{number}-{name}");
                named(counted, field, |full_in| format!("{}ms", full_in.div_ceil(1_000)))
            }
            Speech::Anthropic => {
                let field = |name: &str, number: &str| format!("anthropic-ratelimit-{name}-{number}");
                let full_at = |full_in: u64| rfc3339((theirs + full_in).div_ceil(SECOND));
                let mut named = named(counted, field, full_at);
                named.extend(fields([date]));
                named
            }
        }
    }
}

fn fields(pairs: impl IntoIterator<Item = (&'static str, String)>) -> Vec<(String, String)> {
    pairs.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

fn ietf(counted: &[&(Rule, Left)]) -> [(&'static str, String); 2] {
    let policy = |(rule, left): &&(Rule, Left)| {
        let window = left.period.map_or_else(String::new, |period| format!(";w={}", period / SECOND));
        format!("\"{}\";q={}{window}", rule.name, left.limit)
    };
    let state = |(rule, left): &&(Rule, Left)| {
        format!("\"{}\";r={};t={}", rule.name, left.remaining, left.full_in.div_ceil(SECOND))
    };
    let list = |item: &dyn Fn(&&(Rule, Left)) -> String| {
        counted.iter().map(item).collect::<Vec<String>>().join(", ")
    };
    [("ratelimit-policy", list(&policy)), ("ratelimit", list(&state))]
}

/// Routes of one length share a bucket.
fn discord_bucket(route: &str) -> String {
    format!("bucket-of-{}", route.len())
}

fn discord(left: &Left, route: &str) -> [(&'static str, String); 4] {
    [
        ("x-ratelimit-bucket", discord_bucket(route)),
        ("x-ratelimit-limit", left.limit.to_string()),
        ("x-ratelimit-remaining", left.remaining.to_string()),
        ("x-ratelimit-reset-after", decimal(left.full_in)),
    ]
}

fn riot(counted: &[&(Rule, Left)]) -> [(&'static str, String); 2] {
    let list = |number: fn(&Left) -> u64| {
        let pair = |(_, left): &&(Rule, Left)| {
            format!("{}:{}", number(left), left.period.map_or(0, |period| period / SECOND))
        };
        counted.iter().map(pair).collect::<Vec<String>>().join(",")
    };
    [
        ("x-app-rate-limit", list(|left| left.limit)),
        ("x-app-rate-limit-count", list(|left| left.limit - left.remaining)),
    ]
}

/// Three fields for each rule. `field` is the name of a number of a rule.
fn named(
    counted: &[&(Rule, Left)],
    field: impl Fn(&str, &str) -> String,
    reset: impl Fn(u64) -> String,
) -> Vec<(String, String)> {
    let each = counted.iter().flat_map(|(rule, left)| {
        [
            (field(rule.name, "limit"), left.limit.to_string()),
            (field(rule.name, "remaining"), left.remaining.to_string()),
            (field(rule.name, "reset"), reset(left.full_in)),
        ]
    });
    each.collect()
}

impl Rule {
    /// A rule that counts calls.
    #[must_use]
    pub const fn calls(name: &'static str, counter: Counter) -> Self {
        Self { name, counter, counts: Counts::Calls, by_route: false, announced: Announced::Always }
    }

    /// A rule that counts units.
    #[must_use]
    pub const fn units_of(name: &'static str, counter: Counter) -> Self {
        Self { name, counter, counts: Counts::Units, by_route: false, announced: Announced::Always }
    }

    /// The same rule for each route.
    #[must_use]
    pub const fn each_route(mut self) -> Self {
        self.by_route = true;
        self
    }

    /// The same rule, which counts one of so many units.
    #[must_use]
    pub const fn one_in(mut self, units: u64) -> Self {
        self.counts = Counts::OneIn(units);
        self
    }

    /// The same rule, which no response names.
    #[must_use]
    pub const fn unannounced(mut self) -> Self {
        self.announced = Announced::Never;
        self
    }

    const fn units(&self, asked: Asked<'_>) -> u64 {
        match self.counts {
            Counts::Calls => 1,
            Counts::Units => asked.units,
            Counts::OneIn(units) => asked.units / units,
        }
    }

    const fn is_in_flight(&self) -> bool {
        matches!(self.counter, Counter::InFlight { .. })
    }

    const fn is_announced(&self) -> bool {
        matches!(self.announced, Announced::Always) && !self.is_in_flight()
    }
}

fn decimal(micros: u64) -> String {
    let millis = micros.div_ceil(1_000);
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

/// A body of Shopify's GraphQL API, which has its points. `start` is how it begins.
fn points(lefts: &[(Rule, Left)], requested: u64, start: &str) -> String {
    let Some((Rule { counter: Counter::LeakyBucket { size, per_minute }, .. }, left)) = lefts.first() else {
        return "{}".to_owned();
    };
    let (rate, available) = (per_minute / 60, left.remaining);
    format!(r#"{{{start},"extensions":{{"cost":{{"requestedQueryCost":{requested},"throttleStatus":{{"#,)
        + &format!(
            r#""maximumAvailable":{size},"currentlyAvailable":{available},"restoreRate":{rate}}}}}}}}}"#
        )
}

/// A day of the calendar, and the second in it.
struct Moment {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    weekday: usize,
    second: u64,
}

impl Moment {
    fn at(seconds: u64) -> Self {
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let is_leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let (mut year, mut day) = (1970, days);
        while day >= 365 + u64::from(is_leap(year)) {
            day -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while day >= lengths[month] {
            day -= lengths[month];
            month += 1;
        }
        Self { year, month, day: day + 1, weekday: usize::try_from(days % 7).unwrap_or(0), second }
    }

    fn time(&self) -> String {
        let second = self.second;
        format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
    }
}

/// Seconds since the epoch as an HTTP date.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let moment = Moment::at(seconds);
    let Moment { year, month, day, weekday, .. } = moment;
    format!("{}, {day:02} {} {year} {} GMT", DAYS[weekday], MONTHS[month], moment.time())
}

/// Seconds since the epoch as an instant of RFC 3339.
fn rfc3339(seconds: u64) -> String {
    let moment = Moment::at(seconds);
    format!("{}-{:02}-{:02}T{}Z", moment.year, moment.month + 1, moment.day, moment.time())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 784,111,777 s are the example of RFC 9110.
    #[test]
    fn dates_are_those_of_http() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(1_709_164_800), "Thu, 29 Feb 2024 00:00:00 GMT");
        assert_eq!(rfc3339(784_111_777), "1994-11-06T08:49:37Z");
    }

    const ASKED: Asked<'static> = Asked { route: "/", units: 1 };

    fn admitted(counter: Counter, times: &[u64]) -> Vec<bool> {
        let mut provider = Provider::new(vec![Rule::calls("requests", counter)], Speech::RetryAfter, 0);
        times.iter().map(|at| !provider.call(ASKED, *at).is_refused).collect()
    }

    #[test]
    fn each_counter_counts_as_its_definition() {
        let fixed = Counter::FixedWindow { limit: 2, period: 100 };
        assert_eq!(admitted(fixed, &[10, 109, 109, 110, 111, 112]), [true, true, false, true, true, false]);
        let any = Counter::AnyWindow { limit: 2, period: 100 };
        assert_eq!(admitted(any, &[10, 109, 109, 110, 111, 209]), [true, true, false, true, false, true]);
        let bucket = Counter::LeakyBucket { size: 2, per_minute: 60 };
        assert_eq!(admitted(bucket, &[0, 0, 0, 999_999, 1_000_000]), [true, true, false, false, true]);
    }
}
