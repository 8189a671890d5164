//! Outbound proxies in front of a provider that counts as its dialect says, over a network that is slow at random and
//! loses responses. A violation is a call that the provider refused.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tollgate_outbound::Preset;
use tollgate_testkit::api_server::{ApiServer, Network};
use tollgate_testkit::provider::{Counter, Provider, Rule, Speech};

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
