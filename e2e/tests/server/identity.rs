//! One identity also in a shared store.

use tollgate::CredentialDigest;
use tollgate_testkit::identity::{WAYS, ask_everywhere, command, gateway, key, success_of as printed};

use crate::admin::operate;
use crate::gateway_upstream::Upstream;
use crate::program::{Server, stderr, stdout};
use crate::redis::Redis;
use crate::shared::quick;

/// Every way in charges the same counter for one credential, in memory and in Redis, and an operator sees it by the credential's own text.
#[test]
fn one_credential_is_one_counter_on_every_way_in() {
    let (upstream, redis) = (Upstream::start(), Redis::start(&[]));
    let store = format!("redis://127.0.0.1:{}", redis.port);
    // A decision that the machine has no time for is made without the store, which then knows nothing of it.
    for more in [&[][..], &["--store", &store, "--store-deadline", "50ms"]] {
        let gateway = gateway(&upstream, "limits: [{name: per-key, by: [api_key], rate: 20/h}]", more);
        let answers = ask_everywhere(&gateway, "k1");
        assert!(
            printed(&gateway.server, "get api_key=k1").contains(&format!("{} of 20", 20 - WAYS)),
            "{answers}"
        );
        assert!(printed(&gateway.server, "get api_key=k2").contains("20 of 20"));
        let digest = CredentialDigest::of("k1");
        assert!(printed(&gateway.server, &format!("explain api_key={digest}")).contains("12 of 20 left"));
        // A digest is no credential: a client that sends one is another client.
        gateway.get("/", &key(digest.as_str()));
        assert!(printed(&gateway.server, "get api_key=k1").contains("12 of 20"));
    }
}

/// The output of `reset`, `get` and `unblock` is true, in memory and in Redis.
#[test]
fn commands_report_what_happened() {
    let redis = Redis::start(&[]);
    let store = format!("redis://127.0.0.1:{}", redis.port);
    // A decision that the machine has no time for is made without the store, which then knows nothing of it.
    for more in [&[][..], &["--store", &store, "--store-deadline", "50ms"]] {
        let always = ["serve", "--http", "127.0.0.1:0", "--policy", "-"];
        let policy = "limits: [{name: per-key, by: [api_key], rate: 3/h}, {name: pairs, by: [api_key, ip], algorithm: sliding-window, rate: 9/h}]";
        let server = Server::spawn(command(&[&always, more].concat()), policy);
        let nothing = "no counter existed: nothing was counted for these attributes by per-key, pairs";
        let states = |printed: &str| (printed.matches(" none ").count(), printed.matches(" yes ").count());
        quick(|key| {
            // None where the store did not answer in time: then the command fails, or shows what this server counts by itself.
            let run = |verb: &str, more: &str| {
                let words = format!("{verb} api_key={key}{more}");
                let output = operate(&server, &words.split(' ').collect::<Vec<_>>()).output().unwrap();
                let text = stdout(&output) + &stderr(&output);
                (matches!(output.status.code(), Some(0 | 1)) && !text.contains("local")).then_some(text)
            };
            let missing = run("reset", " ip=::1")?;
            let before = run("get", " ip=::1")?;
            let checked = server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#));
            if checked["limits"][0]["source"] != "exact" {
                return None;
            }
            let counted = run("get", " ip=::1")?;
            let (forgotten, again) = (run("reset", " ip=::1")?, run("reset", "")?);
            assert!(missing.contains(nothing) && again.contains("no counter existed"), "{missing}{again}");
            assert_eq!((states(&before), states(&counted)), ((2, 0), (1, 1)), "{before}{counted}");
            assert!(forgotten.contains("1 counter reset: per-key\n"), "{forgotten}");
            Some(())
        });
        assert!(printed(&server, "reset tenant=t").contains("no limit has a counter for these attributes"));
        let unblock = |words: &str| {
            let output = operate(&server, &words.split(' ').collect::<Vec<_>>()).output().unwrap();
            (output.status.code().unwrap(), stdout(&output))
        };
        assert_eq!(
            unblock("unblock api_key=k1"),
            (1, "there is no block of exactly these attributes\n".to_owned())
        );
        printed(&server, "block ip=::1 --for 1h");
        printed(&server, "block api_key=k1 ip=::1 --for 1h");
        let (code, reported) = unblock("unblock api_key=k1 ip=::1");
        assert!(
            code == 0 && reported.starts_with("unblocked\nstill blocked, by a block of ip="),
            "{reported}"
        );
    }
}
