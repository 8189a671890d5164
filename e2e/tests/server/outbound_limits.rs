//! Outbound proxies in front of a provider that counts as its dialect says, over a network that is slow at random and
//! loses responses. A violation is a call that the provider refused.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use tollgate_outbound::Preset;
use tollgate_testkit::api_server::{ApiServer, Network, RefusedCall};
use tollgate_testkit::provider::{Counter, Provider, Rule, Speech};
use tollgate_testkit::until;

use crate::outbound_fleet::Proxy;
use crate::proxy::Folder;
use crate::redis::Redis;

const SECOND: u64 = 1_000_000;
const NETWORK: Network = Network { way_max: Duration::from_millis(60), lost: 4 };
/// How far the clock of the provider is ahead, in microseconds.
const SKEW: i64 = 300_000_000;

fn provider(counter: Counter, speech: Speech) -> Provider {
    Provider::new(vec![Rule::calls("requests", counter).each_route()], speech, SKEW)
}

/// Two proxies on one store, before one provider.
struct Pair {
    api: ApiServer,
    proxies: [Proxy; 2],
    /// The calls that began.
    calls: AtomicU64,
    _redis: Redis,
    _folder: Folder,
}

impl Pair {
    fn start(name: &str, more: &str, policy: &str, provider: Provider) -> Self {
        let (redis, folder) = (Redis::start(&[]), Folder::new(name));
        let api = ApiServer::start(provider, NETWORK);
        let fields = format!("url: 'http://{}'{more}", api.address);
        let proxies = [(); 2].map(|()| Proxy::before(&fields, policy, &redis.url(), &folder));
        Self { api, proxies, calls: AtomicU64::new(0), _redis: redis, _folder: folder }
    }

    /// Makes the calls by ten callers of each proxy, which take turns. Returns the statuses that came back.
    fn spread(&self, calls: usize, path: &str, fields: &str) -> Vec<u16> {
        let begun = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let callers = (0..20).map(|caller| {
                let (proxy, begun) = (&self.proxies[caller % 2], &begun);
                scope.spawn(move || {
                    let mut statuses = Vec::new();
                    while begun.fetch_add(1, Ordering::SeqCst) < calls {
                        let number = self.calls.fetch_add(1, Ordering::SeqCst);
                        let fields = format!("X-Call: {number}\r\n{fields}");
                        statuses.push(proxy.get(path, "k", &fields).status);
                    }
                    statuses
                })
            });
            let callers: Vec<_> = callers.collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        })
    }
}

/// Two proxies with the preset of GitHub, whose limit of searches they share through a Redis: they send what it admits,
/// and the provider refuses none. On a busy machine the store may be slower than its deadline; then no call leaves.
#[test]
fn proxies_with_a_preset_are_never_refused() {
    let policy = Preset::named("github").unwrap().policy_text();
    let policy = policy.replace("    cost: 1\n", "    cost: 1\n    on_store_failure: deny\n");
    let searches = provider(Counter::AnyWindow { limit: 30, period: 60 * SECOND }, Speech::Github);
    let pair = Pair::start("outbound-preset", ", preset: github", &policy, searches);
    let statuses = pair.spread(70, "/api/search/repositories", "Tollgate-Max-Wait: 3s\r\n");
    let admitted = pair.api.provider().admitted;
    assert_eq!(pair.api.refused(), [], "{admitted} were admitted: {statuses:?}");
    assert!((20..=30).contains(&admitted), "{admitted} were admitted: {statuses:?}");
    assert!(statuses.contains(&429), "the proxies refuse the rest");
}

/// Two proxies wait for the windows of a provider that counts any stretch of time and says nothing but 429. Their policy
/// states its limit, with a margin for the network and a busy machine.
#[test]
fn proxies_that_wait_for_the_next_window_are_never_refused() {
    let policy = "limits: [{name: shared, by: [api_key], rate: 12 per 3s, algorithm: sliding-log, on_store_failure: deny}]";
    let silent = provider(Counter::AnyWindow { limit: 12, period: 3 * SECOND / 2 }, Speech::Silent);
    let pair = Pair::start("outbound-windows", "", policy, silent);
    let statuses = pair.spread(36, "/api/x", "");
    assert_eq!(pair.api.refused(), [], "{statuses:?}");
    let admitted = pair.api.provider().admitted;
    assert!(admitted >= 36, "{admitted} were admitted: {statuses:?}");
    // A call whose response was lost is made again, if the retry budget of its proxy has something left.
    let answered = statuses.iter().filter(|status| **status == 200).count();
    assert!(answered >= 30, "{statuses:?}");
}

/// The beginning of a call, with what the callers of its proxy know by then.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// The smallest limit that came back through the proxy; 0 before the first.
    known: u64,
    /// Whether a call that began before the limit was lowered has no answer yet. It may bring older numbers.
    is_beside_older: bool,
}

/// The callers of one proxy, which have a credential of their own.
#[derive(Default)]
struct Callers {
    known: u64,
    in_flight: BTreeSet<usize>,
}

/// The callers of both proxies.
struct Story {
    pair: Pair,
    callers: [Mutex<Callers>; 2],
    begun: Mutex<Vec<Begun>>,
    /// How many calls had begun when the limit had been lowered.
    lowered_at: AtomicUsize,
    answered: AtomicUsize,
}

impl Story {
    fn call(&self, side: usize) {
        let number = {
            let (mut begun, mut callers) = (self.begun.lock().unwrap(), self.callers[side].lock().unwrap());
            let lowered_at = self.lowered_at.load(Ordering::SeqCst);
            let is_beside_older = callers.in_flight.first().is_some_and(|oldest| *oldest < lowered_at);
            begun.push(Begun { known: callers.known, is_beside_older });
            callers.in_flight.insert(begun.len() - 1);
            begun.len() - 1
        };
        let fields = format!("X-Call: {number}\r\n");
        let response = self.pair.proxies[side].get("/api/x", &format!("k{side}"), &fields);
        let mut callers = self.callers[side].lock().unwrap();
        callers.in_flight.remove(&number);
        if let Some(policy) = response.header("ratelimit-policy") {
            let limit = policy.split("q=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
            callers.known = if callers.known == 0 { limit } else { callers.known.min(limit) };
        }
        drop(callers);
        self.answered.fetch_add(usize::from(response.status == 200), Ordering::SeqCst);
    }

    /// Many callers call at once and again, until so many calls were answered. The limit is lowered when a quarter is.
    fn run(&self, callers: usize, count: usize, lowered: Counter) {
        let together = Barrier::new(callers);
        std::thread::scope(|scope| {
            for caller in 0..callers {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    while self.answered.load(Ordering::SeqCst) < count {
                        self.call(caller % 2);
                    }
                });
            }
            until("a quarter is answered", || {
                (self.answered.load(Ordering::SeqCst) >= count / 4).then_some(())
            });
            self.pair.api.change(|provider| provider.change("requests", lowered));
            self.lowered_at.store(self.begun.lock().unwrap().len(), Ordering::SeqCst);
        });
    }
}

/// The policy allows far more than the provider does. After the first response with numbers came back through a proxy, no
/// call that begins there is refused; and a limit that is lowered while calls are under way refuses none that begins after
/// the first response with the new number, once the calls from before are answered. The provider counts the credentials
/// of the two proxies apart: each learns by its own calls.
#[test]
fn a_generous_policy_is_refused_only_until_the_provider_says_its_limit() {
    const BEFORE: u64 = 10;
    const AFTER: u64 = 6;
    let window = |limit| Counter::FixedWindow { limit, period: SECOND };
    let policy = "limits: [{name: generous, by: [host], rate: 300/s, burst: 300}]";
    let pair = Pair::start("outbound-generous", "", policy, provider(window(BEFORE), Speech::Ietf));
    let (callers, begun) = (Default::default(), Mutex::default());
    let (lowered_at, answered) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
    let story = Story { pair, callers, begun, lowered_at, answered };
    story.run(28, 140, window(AFTER));
    let begun = story.begun.lock().unwrap();
    let was_warned = |refused: &RefusedCall| {
        let Begun { known, is_beside_older } = begun[usize::try_from(refused.number).unwrap()];
        (known == AFTER && !is_beside_older) || (known == BEFORE && refused.changes == 0)
    };
    let (refused, lost) = (story.pair.api.refused(), story.pair.api.lost());
    let late: Vec<&RefusedCall> = refused.iter().filter(|refused| was_warned(refused)).collect();
    assert!(late.is_empty(), "{late:?}, {} of {} refused, {lost} responses lost", refused.len(), begun.len());
    assert!(!refused.is_empty(), "the policy is not too generous");
    let warned = begun.iter().filter(|begun| begun.known == AFTER && !begun.is_beside_older).count();
    assert!(warned > 20, "{warned} calls began after the new limit was known");
}
