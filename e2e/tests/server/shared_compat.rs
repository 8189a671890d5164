//! Other people's files on a store that servers share, with and without it.

use tollgate_testkit::{free_port, until};

use crate::program::Server;
use crate::redis::Redis;
use crate::shared::{on, quick};

/// Files of envoyproxy/ratelimit and of Limitador count in the store as well.
#[test]
fn compat_files_count_together() {
    let redis = Redis::start(&[]);
    let envoy = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]";
    let (one, two) = (on(&redis.url(), envoy), on(&redis.url(), envoy));
    let counts = |one: &Server, two: &Server, path: &str, question: &dyn Fn(&str) -> String| {
        quick(|key| {
            let codes = [one, two, one, two].map(|server| server.send("POST", path, &question(key)).status);
            (codes == [200, 200, 200, 429]).then_some(())
        });
    };
    counts(&one, &two, "/json", &|user| {
        format!(r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"user","value":"{user}"}}]}}]}}"#)
    });
    let limitador = "- {namespace: n, max_value: 3, seconds: 86400, conditions: [], variables: [\"descriptors[0]['user']\"]}";
    let (one, two) = (on(&redis.url(), limitador), on(&redis.url(), limitador));
    counts(&one, &two, "/check_and_report", &|user| {
        format!(r#"{{"namespace":"n","values":{{"user":"{user}"}},"delta":1}}"#)
    });
}

/// Other people's files go on counting without their store: by shares, as the fleet was last counted, or of three while their number is unknown.
#[test]
fn compat_files_without_their_store() {
    let envoy = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]";
    let server = on(&format!("redis://127.0.0.1:{}", free_port()), envoy);
    let question = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    let codes = [(); 3].map(|()| server.send("POST", "/json", question).status);
    assert_eq!(codes, [200, 429, 429]);
}

const ENVOY: &str = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]";
const LIMITADOR: &str = "- {namespace: d, max_value: 10, seconds: 86400, conditions: [], variables: [\"descriptors[0]['user']\"]}";

/// The answer to a plain request under such a file: whether it passes, what is left, and where that comes from.
fn asked(server: &Server, user: &str, cost: u64) -> (bool, u64, String) {
    let body = format!(r#"{{"attributes":{{"user":"{user}"}},"cost":{cost}}}"#);
    let answer = server.check(&body);
    let limit = &answer["limits"][0];
    let source = limit["source"].as_str().unwrap().to_owned();
    (answer["allowed"] == true, limit["remaining"].as_u64().unwrap(), source)
}

/// While the store is away such a file is decided by this server's share, and says so, in answers and in metrics. What was admitted is
/// taken from the store's counters once it is back, and once; what only the share refused is not.
#[test]
fn compat_rules_reconcile_with_the_store() {
    for (file, rule) in [(ENVOY, "d.user"), (LIMITADOR, "d.86400s")] {
        let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let server = on(&redis.url(), file);
        until("it has signed itself", || (server.metric("tollgate_store_nodes") == 1).then_some(()));
        let mut user = String::new();
        quick(|key| {
            user = key.to_owned();
            let taken = [asked(&server, key, 1), asked(&server, key, 1)];
            (taken == [(true, 9, "exact".to_owned()), (true, 8, "exact".to_owned())]).then_some(())
        });
        // Usage of an earlier attempt that was too slow is deferred and reported, too.
        let settled = || server.metric("tollgate_store_debts_settled_total{result=\"ok\"}");
        until("nothing is owed yet", || (server.metric("tollgate_store_debts") == 0).then_some(()));
        let settled_before = settled();
        redis.kill();
        // A request that is under way when the store goes may have been counted there, so it is never reported again: none is sent before
        // the server knows. Looks cost nothing.
        until("the server knows that its store is away", || {
            asked(&server, &user, 0);
            (server.send("GET", "/readyz", "").json()["store"]["status"] == "away").then_some(())
        });
        for left in [7, 6, 5] {
            assert_eq!(asked(&server, &user, 1), (true, left, "local".to_owned()), "{file}");
        }
        // Larger than what is left: refused, and not counted.
        assert_eq!(asked(&server, &user, 6), (false, 0, "local".to_owned()), "{file}");
        assert!(server.metric("tollgate_store_debts") > 0);
        let metrics = server.metrics();
        for outcome in ["allow", "deny"] {
            let series = metrics.lines().find(|line| {
                let has = |label: &str| line.contains(label);
                has("tollgate_limit_decisions_total{")
                    && has(&format!("outcome=\"{outcome}\""))
                    && has("source=\"local\"")
                    && has(&format!("limit=\"{rule}\""))
            });
            assert!(series.is_some_and(|line| !line.ends_with(" 0")), "{rule}, {outcome}: {metrics}");
        }
        redis.start_again();
        until("the store knows of all five", || {
            (asked(&server, &user, 0) == (true, 5, "exact".to_owned())).then_some(())
        });
        until("nothing is owed", || (server.metric("tollgate_store_debts") == 0).then_some(()));
        // It is counted a moment after nothing is owed any more.
        until("one debt is settled", || (settled() - settled_before == 1).then_some(()));
        until("it is reported once", || {
            let reported = asked(&server, &user, 0);
            (reported.2 == "exact").then(|| assert_eq!(reported, (true, 5, "exact".to_owned())))
        });
    }
}
