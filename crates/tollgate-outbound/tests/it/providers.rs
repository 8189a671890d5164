//! Clients beside providers that count, in virtual time: with latency, wrong clocks, lost responses, limits that change
//! and other tenants. A violation is a call that the provider refused.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::StatusCode;
use proptest::prelude::*;
use tollgate::{Engine, ManualClock, Ticks, Timestamp};
use tollgate_outbound::{Call, Failure, Outbound, Preset, ResponseView, Settings};
use tollgate_testkit::provider::{Answer, Asked, Counter, Provider, Rule, Speech};

use crate::fixture::{HOST, header_map};

const SECOND: u64 = 1_000_000;
/// The output of a model is this part of its input.
const OUTPUT_PART: i64 = 2;

/// A sequence of numbers from a seed.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }
}

/// A call that left, as an observer of both sides sees it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: u64,
    answered_at: Option<u64>,
    is_refused: bool,
    /// Until when the refusal asked to be left alone.
    retry_at: Option<u64>,
}

#[derive(Clone)]
struct World {
    time: ManualClock,
    outbound: Outbound,
    provider: Arc<Mutex<Provider>>,
    sent: Arc<Mutex<Vec<Sent>>>,
    plan: Arc<Plan>,
}

/// The events of a run.
struct Plan {
    callers: u64,
    lasts: Duration,
    /// The longest time on one way, in µs.
    latency: u64,
    /// The longest time that the provider works on a call, in µs.
    work: u64,
    /// Of a thousand responses so many are lost.
    lost: u64,
    /// The attribute whose values the provider counts apart.
    apart: &'static str,
    routes: &'static [&'static str],
    units: u64,
    plan: Option<&'static str>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            callers: 8,
            lasts: Duration::from_secs(120),
            latency: 45_000,
            work: 0,
            lost: 0,
            apart: "route",
            routes: &["GET /a"],
            units: 1,
            plan: None,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl World {
    fn new(policy: &str, mut settings: Settings, provider: Provider, plan: Plan, seed: u64) -> Self {
        let time = ManualClock::new();
        settings.seed = Some(seed);
        settings.max_wait = Duration::from_secs(100_000);
        let engine = Engine::builder().policy(policy.parse().unwrap()).clock(time.clock()).build();
        let provider = Arc::new(Mutex::new(provider));
        let outbound = Outbound::new(engine, settings);
        Self { time, outbound, provider, sent: Arc::default(), plan: Arc::new(plan) }
    }

    fn now(&self) -> u64 {
        self.time.now().unix_micros()
    }

    async fn pass(&self, micros: u64) {
        self.time.clock().sleep_until(self.time.now() + Ticks::from_micros(micros)).await;
    }

    fn call(&self, route: &str) -> Call {
        let units = i64::try_from(self.plan.units).unwrap();
        let mut call = Call::to(HOST)
            .with("api_key", "k")
            .and_then(|call| call.with(self.plan.apart, route))
            .and_then(|call| call.with_number("input_tokens", units))
            .and_then(|call| call.with_number("max_tokens", units / OUTPUT_PART))
            .and_then(|call| call.cost(self.plan.units))
            .unwrap();
        if let Some(plan) = self.plan.plan {
            call = call.with("plan", plan).unwrap();
        }
        call
    }

    /// A caller that always has a call to make.
    async fn caller(self, mut dice: Dice) {
        loop {
            let routes = self.plan.routes;
            let route = routes[usize::try_from(dice.below(routes.len() as u64)).unwrap()];
            let asked = Asked { route, units: self.plan.units };
            let Ok(guard) = self.outbound.acquire(&self.call(route)).await else {
                self.pass(SECOND).await;
                continue;
            };
            let (index, at) = {
                let mut sent = locked(&self.sent);
                let at = self.now();
                sent.push(Sent { at, answered_at: None, is_refused: false, retry_at: None });
                (sent.len() - 1, at)
            };
            self.pass(dice.below(self.plan.latency)).await;
            let answer = locked(&self.provider).call(asked, self.now());
            if self.plan.work > 0 {
                self.pass(dice.below(self.plan.work)).await;
            }
            locked(&self.provider).end(asked, self.now());
            self.pass(dice.below(self.plan.latency)).await;
            locked(&self.sent)[index].is_refused = answer.is_refused;
            if dice.below(1_000) < self.plan.lost {
                guard.fail(Failure::Unanswered).await;
                continue;
            }
            locked(&self.sent)[index] = Sent { at, ..self.note(&answer) };
            let pairs: Vec<(&str, &str)> =
                answer.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let headers = header_map(&pairs);
            let status = StatusCode::from_u16(answer.status).unwrap();
            let (body, received) = (answer.body.as_deref().map(str::as_bytes), self.time.now());
            let _ = guard.settle(&ResponseView { status, headers: &headers, body, received }, None).await;
        }
    }

    fn note(&self, answer: &Answer) -> Sent {
        let now = self.now();
        let wait = answer.headers.iter().find(|(name, _)| name == "retry-after");
        let retry_at = wait.map(|(_, seconds)| now + seconds.parse::<u64>().unwrap() * SECOND);
        Sent { at: 0, answered_at: Some(now), is_refused: answer.is_refused, retry_at }
    }

    /// Runs all callers until the end; `events` happen at their instants.
    async fn run(&self, seed: u64, mut events: Vec<(Duration, Event)>) {
        let start = self.time.now();
        for number in 0..self.plan.callers {
            tokio::spawn(self.clone().caller(Dice(seed.wrapping_mul(1_000) + number)));
        }
        events.sort_by_key(|(at, _)| *at);
        let mut events = events.into_iter().peekable();
        let end = start + Ticks::ceil_from(self.plan.lasts);
        while self.time.now() < end {
            for _ in 0..40 {
                tokio::task::yield_now().await;
            }
            let next_event = events.peek().map_or(end, |(at, _)| start + Ticks::ceil_from(*at));
            let next = self.time.next_wake().unwrap_or(end).min(next_event).min(end);
            self.time.advance(next.since(self.time.now()).into());
            if next == next_event
                && let Some((_, event)) = events.next()
            {
                event.happen(&mut locked(&self.provider), self.now());
            }
        }
    }

    fn violations(&self) -> Vec<Sent> {
        locked(&self.sent).iter().filter(|sent| sent.is_refused).copied().collect()
    }
}

/// The events besides the calls.
#[derive(Clone, Copy)]
enum Event {
    Change(&'static str, Counter),
    OtherTenant,
}

impl Event {
    fn happen(self, provider: &mut Provider, now: u64) {
        match self {
            Event::Change(name, counter) => provider.change(name, counter),
            Event::OtherTenant => provider.call_of_other(Asked { route: "GET /a", units: 1 }, now),
        }
    }
}

fn bucket(size: u64, per_minute: u64) -> Counter {
    Counter::LeakyBucket { size, per_minute }
}

fn any(limit: u64, seconds: u64) -> Counter {
    Counter::AnyWindow { limit, period: seconds * SECOND }
}

fn fixed(limit: u64, seconds: u64) -> Counter {
    Counter::FixedWindow { limit, period: seconds * SECOND }
}

fn in_virtual_time(run: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run);
}

/// How the provider of a preset counts, by its documentation, and a run of it with the calls or units that it allows.
fn provider_of(preset: &str, skew: i64) -> (Provider, Plan, u64) {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let models = Plan { apart: "model", routes: &["m-small", "m-large"], ..Plan::default() };
    let (rules, speech, plan, allowed) = match preset {
        "anthropic" => {
            let rules = vec![
                Rule::calls("requests", bucket(50, 50)).each_route(),
                Rule::units_of("input-tokens", bucket(30_000, 30_000)).each_route(),
                Rule::units_of("output-tokens", bucket(8_000, 8_000)).one_in(2).each_route(),
            ];
            let plan = Plan { units: 400, lasts: minutes(10), ..models };
            (rules, Speech::Anthropic, plan, 2 * 80_000 / 200)
        }
        "discord" => {
            let rules =
                vec![Rule::calls("global", any(50, 1)), Rule::calls("route", fixed(5, 5)).each_route()];
            // Two routes share each bucket.
            let routes = &["a", "b", "cc", "dd", "eee", "fff"];
            // Long enough that a few windows that begin with a lost response do not decide.
            let plan = Plan { routes, lasts: minutes(6), ..Plan::default() };
            (rules, Speech::Discord, plan, 3 * 5 * 360 / 5)
        }
        "github" => {
            let rules = vec![
                Rule::calls("core", fixed(5_000, 3_600)),
                Rule::calls("points", any(900, 60)).each_route().unannounced(),
                Rule::calls("in-flight", Counter::InFlight { limit: 100 }),
            ];
            (rules, Speech::Github, Plan { callers: 20, lasts: minutes(70), ..Plan::default() }, 10_000)
        }
        "openai" => {
            let rules = vec![
                Rule::calls("requests", bucket(500, 500)).each_route(),
                Rule::units_of("tokens", bucket(30_000, 30_000)).each_route(),
            ];
            (rules, Speech::GoDurations, Plan { units: 300, lasts: minutes(5), ..models }, 2 * 500)
        }
        "shopify" => (vec![Rule::calls("requests", bucket(40, 120))], Speech::Shopify, Plan::default(), 240),
        "shopify-graphql" => {
            let rules = vec![Rule::units_of("points", bucket(2_000, 6_000))];
            (rules, Speech::ShopifyGraphQl, Plan { units: 50, ..Plan::default() }, 240)
        }
        "slack" => {
            let rules = vec![Rule::calls("method", any(100, 60)).each_route()];
            (
                rules,
                Speech::RetryAfter,
                Plan { plan: Some("tier-4"), lasts: minutes(4), ..Plan::default() },
                400,
            )
        }
        "stripe" => {
            let rules =
                vec![Rule::calls("account", any(100, 1)), Rule::calls("endpoint", any(25, 1)).each_route()];
            let routes = &["GET /v1/a", "GET /v1/b", "GET /v1/c"];
            let plan = Plan { routes, plan: Some("live"), callers: 24, lasts: minutes(1), ..Plan::default() };
            (rules, Speech::Silent, plan, 60 * 75)
        }
        other => panic!("no provider for {other}"),
    };
    (Provider::new(rules, speech, skew), plan, allowed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// With its preset a client never meets a provider's limit, whatever the latency, the clocks and the lost responses
    /// are, and uses most of what the provider allows.
    #[test]
    fn a_client_with_the_right_preset_is_never_refused(
        number in 0..Preset::ALL.len(), seed: u64, skew in -3_600_i64..3_600, latency in 5_u64..45, lost in 0_u64..20,
    ) {
        let preset = Preset::ALL[number];
        let (provider, plan, allowed) = provider_of(preset.name(), skew * 1_000_000);
        let plan = Plan { lost, latency: latency * 1_000, ..plan };
        let world = World::new(preset.policy_text(), preset.settings(), provider, plan, seed);
        in_virtual_time(world.run(seed, Vec::new()));
        let (name, violations) = (preset.name(), world.violations());
        prop_assert!(violations.is_empty(), "{name}: {} refused: {violations:?}", violations.len());
        let admitted = locked(&world.provider).admitted;
        prop_assert!(admitted * 100 >= allowed * 80, "{name}: {admitted} of {allowed} admitted");
    }
}

/// Three new routes share one bucket of five calls. Twelve callers that begin together meet its limit, and not its
/// refusal: a call of an unknown route counts in every bucket that may count it.
#[test]
fn new_routes_that_share_a_bucket_are_not_refused() {
    for seed in 0..20 {
        let preset = Preset::named("discord").unwrap();
        let rules = vec![Rule::calls("route", fixed(5, 3)).each_route()];
        let provider = Provider::new(rules, Speech::Discord, 0);
        let (routes, lasts) = (&["a", "b", "c"], Duration::from_secs(30));
        let plan = Plan { callers: 12, routes, lasts, ..Plan::default() };
        let world = World::new(preset.policy_text(), preset.settings(), provider, plan, seed);
        in_virtual_time(world.run(seed, Vec::new()));
        assert!(world.violations().is_empty(), "{seed}: {:?}", world.violations());
        let admitted = locked(&world.provider).admitted;
        assert!(admitted >= 40, "{seed}: {admitted} of 50 admitted");
    }
}

/// GitHub takes 100 calls in flight. A client with more callers has so many, and no more.
#[tokio::test]
async fn calls_in_flight_stay_below_the_limit_of_github() {
    let preset = Preset::named("github").unwrap();
    let (provider, _, _) = provider_of("github", 0);
    let plan = Plan { callers: 150, work: 2_000_000, lasts: Duration::from_secs(6), ..Plan::default() };
    let world = World::new(preset.policy_text(), preset.settings(), provider, plan, 1);
    world.run(1, Vec::new()).await;
    assert!(world.violations().is_empty(), "{:?}", world.violations());
    let busiest = locked(&world.provider).busiest;
    assert!(busiest > 90, "only {busiest} calls were in flight together");
}

/// A run with a policy that allows a multiple of what the provider does.
fn generous(rules: Vec<Rule>, speech: Speech, skew: i64, lost: u64, seed: u64) -> World {
    let policy = "limits: [{name: generous, by: [host], rate: 300/s, burst: 300}]";
    let is_steady = rules.iter().any(|rule| matches!(rule.counter, Counter::LeakyBucket { .. }));
    let provider = Provider::new(rules, speech, skew);
    let mut settings = Settings::default();
    settings.discovers_buckets = speech == Speech::Discord;
    if is_steady {
        settings.replenish = tollgate_outbound::Replenish::Steadily;
    }
    let lasts = Duration::from_secs(60);
    let plan = Plan { callers: 40, latency: 30_000, lasts, lost, ..Plan::default() };
    World::new(policy, settings, provider, plan, seed)
}

/// How providers count and what they say about it.
fn dialects() -> Vec<(Vec<Rule>, Speech)> {
    let calls = |counter| vec![Rule::calls("requests", counter)];
    vec![
        (calls(fixed(100, 10)), Speech::Ietf),
        (calls(fixed(20, 2)), Speech::Ietf),
        (calls(fixed(100, 10)), Speech::Draft07),
        (calls(fixed(100, 10)), Speech::Epoch),
        (calls(fixed(100, 10)), Speech::Github),
        (calls(fixed(100, 10)), Speech::GoDurations),
        (vec![Rule::calls("route", fixed(5, 5)).each_route()], Speech::Discord),
        (vec![Rule::calls("app", fixed(20, 1)), Rule::calls("app", fixed(100, 12))], Speech::Riot),
        (calls(bucket(40, 1_200)), Speech::Shopify),
        (calls(bucket(50, 6_000)), Speech::ShopifyGraphQl),
        (calls(bucket(100, 1_200)), Speech::Ietf),
        (calls(bucket(100, 1_200)), Speech::GoDurations),
        (calls(bucket(50, 600)), Speech::Anthropic),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A policy that is too generous is refused only until the first response tells, in every dialect and whatever the
    /// latency, the clocks and the lost responses are.
    #[test]
    fn refusals_stop_after_the_first_response_that_tells(
        number in 0..dialects().len(), seed: u64, skew in -3_600_i64..3_600, lost in 0_u64..30,
    ) {
        let (rules, speech) = dialects().swap_remove(number);
        let world = generous(rules, speech, skew * 1_000_000, lost, seed);
        in_virtual_time(world.run(seed, Vec::new()));
        let told_at = locked(&world.sent).iter().filter_map(|sent| sent.answered_at).min().unwrap();
        let late: Vec<Sent> = world.violations().into_iter().filter(|sent| sent.at > told_at).collect();
        prop_assert!(late.is_empty(), "{speech:?}: {} refused after {told_at}: {late:?}", late.len());
        let admitted = locked(&world.provider).admitted;
        prop_assert!(admitted > 50, "{speech:?}: hardly a call: {admitted}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// A limit that shrinks in mid-flight refuses only calls that left before a response announced it.
    #[test]
    fn a_limit_that_shrinks_refuses_only_what_left_before(
        speech in prop::sample::select(vec![Speech::Ietf, Speech::Draft07, Speech::Epoch, Speech::GoDurations]),
        period in prop::sample::select(vec![2_u64, 10]), seed: u64, lost in 0_u64..30,
    ) {
        let policy = format!(
            "limits: [{{name: requests, by: [host], rate: 100 per {period}200ms, algorithm: sliding-window}}]"
        );
        let provider = Provider::new(vec![Rule::calls("requests", fixed(100, period))], speech, 0);
        let plan = Plan { lasts: Duration::from_secs(90), lost, ..Plan::default() };
        let world = World::new(&policy, Settings::default(), provider, plan, seed);
        let changed = world.now() + 34 * SECOND;
        let change = (Duration::from_secs(34), Event::Change("requests", fixed(30, period)));
        in_virtual_time(world.run(seed, vec![change]));
        let sent = locked(&world.sent).clone();
        // What the provider answered before the change has arrived by then.
        let answers = sent.iter().filter_map(|sent| sent.answered_at).filter(|at| *at > changed + 50_000);
        let told_at = answers.min().unwrap();
        let late: Vec<&Sent> = sent.iter().filter(|sent| sent.is_refused && sent.at > told_at).collect();
        prop_assert!(late.is_empty(), "{late:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// No call leaves while a refusal that was heard asks to be left alone, also when other tenants use up the quota. Where
    /// the provider says what is left, each call of theirs costs us one refusal at most: one that was under way.
    #[test]
    fn no_call_leaves_in_the_time_that_a_refusal_asked_for(
        speech in prop::sample::select(vec![Speech::RetryAfter, Speech::Ietf, Speech::Epoch, Speech::GoDurations]),
        seed: u64,
    ) {
        let policy =
            "limits: [{name: requests, by: [host], rate: 100 per 10200ms, algorithm: sliding-window}]";
        let provider = Provider::new(vec![Rule::calls("requests", fixed(100, 10))], speech, 0);
        let plan = Plan { lasts: Duration::from_secs(120), ..Plan::default() };
        let world = World::new(policy, Settings::default(), provider, plan, seed);
        let mut dice = Dice(seed);
        let others =
            (0..600).map(|_| (Duration::from_millis(dice.below(120_000)), Event::OtherTenant)).collect();
        in_virtual_time(world.run(seed, others));
        let sent = locked(&world.sent).clone();
        let refusals: Vec<Sent> = sent.iter().filter(|sent| sent.is_refused).copied().collect();
        for refusal in &refusals {
            let (Some(heard), Some(until)) = (refusal.answered_at, refusal.retry_at) else { continue };
            let early: Vec<&Sent> = sent.iter().filter(|sent| sent.at > heard && sent.at < until).collect();
            prop_assert!(early.is_empty(), "{early:?} within {refusal:?}");
        }
        let of_others = usize::try_from(locked(&world.provider).admitted_of_others).unwrap();
        prop_assert!(of_others > 100, "the other tenants used nothing up: {of_others}");
        if speech == Speech::RetryAfter {
            let share = refusals.len() * 100 / sent.len();
            prop_assert!(!refusals.is_empty() && share < 10, "{} of {} calls were refused", refusals.len(), sent.len());
        } else {
            prop_assert!(refusals.len() <= of_others, "{} refused beside {of_others} of others", refusals.len());
        }
    }
}

/// The instants of this file and of the clock agree.
#[test]
fn an_epoch_is_read_with_the_clock_of_the_provider() {
    let mut provider =
        Provider::new(vec![Rule::calls("requests", fixed(5, 60))], Speech::Epoch, -300_000_000);
    let now = Timestamp::from_unix_seconds(1_795_032_000);
    let answer = provider.call(Asked { route: "/", units: 1 }, now.unix_micros());
    let pairs: Vec<(&str, &str)> = answer.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let headers = header_map(&pairs);
    let response = ResponseView { status: StatusCode::OK, headers: &headers, body: None, received: now };
    let signals = tollgate_outbound::dialect::read(&response);
    assert_eq!(signals.windows[0].resets_in, Some(Ticks::from_secs(60)));
    assert_eq!((signals.windows[0].limit, signals.windows[0].remaining), (Some(5), Some(4)));
}
