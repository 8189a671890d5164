//! The console in a real browser, against the real program: what an operator sees and does, and what a hostile caller
//! cannot do to it.

use std::net::TcpListener;
use std::path::Path;

use serde_json::json;
use tollgate_testkit::Scratch;

use crate::admin::{TOKEN, ask, server};
use crate::browser::{Browser, Scripts};
use crate::program::{Server, tollgate};
use crate::redis::Redis;
use crate::shared::{on, on_with};

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h}, {name: all, rate: 1000/h}]";
const KEY: &str = r#"{"attributes":{"api_key":"k"}}"#;
/// The digest that stands for the credential `k`.
const DIGEST: &str = "sha256:8254c329a92850f6d539dd376f4816ee";
/// How many rounds of requests the pictures show: about 20 seconds.
const PICTURED: usize = 120;
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";

/// A browser at the console, logged in.
fn logged_in(server: &Server, token: &str, scripts: Scripts) -> Browser {
    let browser = Browser::start(scripts);
    browser.open(&format!("http://{}/console", server.address));
    browser.enter("#token", token);
    browser.click("button");
    browser.shows("#strip", "server");
    browser
}

/// The text of the row of a table that begins with a name.
fn row(browser: &Browser, panel: &str, name: &str) -> String {
    let script = format!(
        "const rows = [...document.querySelectorAll('#{panel} tbody tr')]; \
         return rows.find((row) => row.cells[0].innerText === {})?.innerText ?? '';",
        json!(name)
    );
    browser.script(&script).as_str().unwrap().to_owned()
}

/// Opens what a row is about.
fn open(browser: &Browser, panel: &str, name: &str) {
    browser.soon(&format!("{name} is in {panel}"), || {
        let script = format!(
            "const rows = [...document.querySelectorAll('#{panel} tbody tr')]; \
             const row = rows.find((row) => row.innerText.includes({})); \
             row?.querySelector('a')?.click(); return Boolean(row);",
            json!(name)
        );
        browser.script(&script).as_bool().filter(|found| *found)
    });
    browser.soon("it is open", || browser.text("#act-title").contains(name).then_some(()));
}

fn press_offer(browser: &Browser, label: &str) {
    let script = format!(
        "const offers = [...document.querySelectorAll('.offer button')]; \
         offers.find((button) => button.innerText === {}).click();",
        json!(label)
    );
    browser.script(&script);
}

#[track_caller]
fn without_complaints(browser: &Browser) {
    assert_eq!(browser.complaints(), Vec::<String>::new(), "the browser complains");
}

/// An operator logs in, sees denials arrive, asks about a key, blocks it, and turns a limit off and on again.
#[test]
fn an_operator_works_in_a_browser() {
    let server = server(POLICY);
    let browser = Browser::start(Scripts::On);
    browser.open(&format!("http://{}/console", server.address));
    browser.enter("#token", "not-the-token-of-this-server");
    browser.click("button");
    browser.shows(".bad", "the token is not known");
    let refused = browser.complaints();
    assert!(
        refused.iter().all(|complaint| complaint.contains("401")),
        "only the refusal itself: {refused:?}"
    );
    browser.enter("#token", TOKEN);
    browser.click("button");
    browser.shows("#strip", "ok");
    assert!(!browser.url().contains(TOKEN) && browser.url().ends_with("/console"), "{}", browser.url());
    assert_eq!(browser.script("return document.cookie"), "", "no script reads the session");
    browser.shows("#state", "live");
    for _ in 0..8 {
        server.check(KEY);
    }
    browser.soon("3 denials", || row(&browser, "limits", "per-key").contains("\t3\t").then_some(()));
    browser.shows("#keys", DIGEST);
    browser.shows("#near", "now");
    browser.soon("the chart has denials", || {
        browser
            .script("return document.querySelector('#chart svg .denied') !== null")
            .as_bool()
            .filter(|drawn| *drawn)
    });
    browser.enter("#ask-key", "api_key=k");
    browser.click("#ask-form button");
    browser.shows("#answer", "Yes, limit per-key denies it: 0 of 5 left; it passes again at");

    let other = r#"{"attributes":{"api_key":"other"}}"#;
    assert_eq!(server.check(other)["allowed"], true);
    open(&browser, "keys", "api_key=sha256:d9298a10d1b0735837dc4bd85dac641b");
    browser.shows("#act-about", "No, such a request passes now");
    browser.shows("#act-offers", "tollgate block api_key=sha256:d9298a10d1b0735837dc4bd85dac641b --for 10m");
    press_offer(&browser, "Block for 10 min");
    browser.shows("#act-result", "is blocked until");
    assert_eq!(server.check(other)["cause"], "operator-block");
    browser.shows("#overrides", "blocked");
    browser.shows("#audit", "block");
    // The story: "such a request passes now" stayed above "is blocked until", and the block could not be lifted there.
    browser.shows("#act-about", "Yes, it is denied");
    assert!(!browser.text("#act-about").contains("passes now"), "{}", browser.text("#act-about"));
    browser.shows("#act-offers", "Unblock");
    press_offer(&browser, "Unblock");
    browser.shows("#act-result", "is no longer blocked");
    browser.shows("#act-about", "No, such a request passes now");
    assert_eq!(server.check(other)["allowed"], true);

    open(&browser, "limits", "per-key");
    press_offer(&browser, "Turn off for 10 min");
    browser.shows("#act-result", "limit per-key: off until");
    assert_eq!(server.check(KEY)["allowed"], true, "the limit is off");
    browser.shows("#overrides", "ends in 9 min");
    // The question of before is still there.
    browser.click("#ask-form button");
    browser.shows("#answer .warn", "limit per-key does not deny it: an operator turned it off until 20");
    // A question that is none is no error of the page.
    browser.script("document.getElementById('ask-key').value = 'no question'");
    browser.click("#ask-form button");
    browser.shows("#answer .bad", "api_key=k1 path=");
    press_offer(&browser, "Restore");
    browser.shows("#act-result", "limit per-key: restored");
    assert_eq!(server.check(KEY)["allowed"], false, "the limit holds again");
    let audit = ask(&server, TOKEN, "GET", "/admin/v1/audit", "").json().to_string();
    assert!(
        ["block", "kill", "restore"].iter().all(|verb| audit.contains(&format!("\"verb\":\"{verb}\""))),
        "{audit}"
    );
    without_complaints(&browser);
    browser.click("header button");
    browser.shows("h1", "Tollgate console");
}

/// A page that sends a request and watches its own table, by its own clock. Of three rounds two must keep the promise: the
/// machine may stall once. `.config/nextest.toml` lets nothing run beside it.
#[test]
fn a_denial_is_shown_within_two_seconds() {
    const SHOWN: &str = r#"
        const denied = () => [...document.querySelectorAll('#limits tbody tr')]
            .find((row) => row.cells[0].innerText === 'per-key')?.cells[5].innerText;
        const [before, began] = [denied(), performance.now()];
        new MutationObserver((changes, observer) => {
            if (denied() === before) return;
            observer.disconnect();
            done(performance.now() - began);
        }).observe(document.getElementById('limits'), { childList: true, subtree: true });
        const headers = { 'Content-Type': 'application/json' };
        fetch('/v1/check', { method: 'POST', headers, body: '{"attributes":{"api_key":"k"}}' });"#;
    let server = server(POLICY);
    let browser = logged_in(&server, TOKEN, Scripts::On);
    browser.shows("#state", "live");
    (0..6).for_each(|_| drop(server.check(KEY)));
    let denied = || {
        let script = "const rows = [...document.querySelectorAll('#limits tbody tr')]; \
                      return rows.find((row) => row.cells[0].innerText === 'per-key')?.cells[5].innerText ?? '';";
        browser.script(script)
    };
    browser.soon("1 denial", || (denied() == "1").then_some(()));
    let mut millis = [(); 3].map(|()| browser.measured(SHOWN));
    millis.sort_by(f64::total_cmp);
    assert!(millis[1] <= 2_000.0, "{millis:?}");
    assert_eq!(denied(), "4");
    without_complaints(&browser);
}

/// A denial by another node of the fleet is shown as soon as one of this node, by the clock of the page that sends the
/// request to the other node and watches its own table. Of five rounds three must keep the promise.
#[test]
fn a_denial_of_another_node_is_shown_within_two_seconds() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    one.joined();
    two.joined();
    let browser = logged_in(&one, TOKEN, Scripts::On);
    browser.shows("#strip", "sums over 2 of 2");
    (0..6).for_each(|_| drop(two.check(KEY)));
    let denied = || {
        let script = "const rows = [...document.querySelectorAll('#limits tbody tr')]; \
                      return rows.find((row) => row.cells[0].innerText === 'per-key')?.cells[5].innerText ?? '';";
        browser.script(script)
    };
    browser.soon("1 denial", || (denied() == "1").then_some(()));
    let mut millis = Vec::new();
    for count in 2..=6 {
        // The page watches its table, and the test asks the other node: a page may not send to another server.
        browser.script(
            "window.changedAt = null; window.askedAt = performance.now(); \
             const count = () => [...document.querySelectorAll('#limits tbody tr')] \
                 .find((row) => row.cells[0].innerText === 'per-key')?.cells[5].innerText; \
             const before = count(); \
             new MutationObserver((changes, observer) => { \
                 if (count() === before) return; \
                 observer.disconnect(); \
                 window.changedAt = performance.now(); \
             }).observe(document.getElementById('limits'), { childList: true, subtree: true });",
        );
        assert_eq!(two.check(KEY)["allowed"], false);
        let shown = json!(count.to_string());
        browser.soon("it is shown", || (denied() == shown).then_some(()));
        millis.push(browser.script("return window.changedAt - window.askedAt").as_f64().unwrap());
    }
    millis.sort_by(f64::total_cmp);
    assert!(millis[2] <= 2_000.0, "{millis:?}");
    without_complaints(&browser);
}

/// A node that accepts connections and never answers delays nothing of the others: a denial by a node that answers is in
/// the next overview but one, which are made once a second. Of five rounds three must keep the promise.
#[test]
fn a_silent_node_delays_nothing() {
    const COUNTS: &str = "const counts = window.overviews.map((overview) => overview.panels \
        .find((panel) => panel.id === 'limits').entries \
        .find((entry) => entry.fields[0].text === 'per-key').fields[5].text);";
    let redis = Redis::start(&[]);
    // The system accepts connections in its name.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let advertised = format!("http://{}", silent.local_addr().unwrap());
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    let three = on_with(&redis.url(), POLICY, &["--advertise-admin", &advertised]);
    [&one, &two, &three].into_iter().for_each(|server| server.joined());
    let browser = logged_in(&one, TOKEN, Scripts::On);
    browser.shows("#strip", "sums over 2 of 3; without ");
    browser.shows("#nodes", "missing: it does not answer within a second");
    browser.script(
        "window.overviews = []; \
         new EventSource('/console/events') \
             .addEventListener('overview', (event) => window.overviews.push(JSON.parse(event.data)));",
    );
    (0..6).for_each(|_| drop(two.check(KEY)));
    let overview_with = |denials: u64| {
        let script = format!("{COUNTS} return counts.indexOf({});", json!(denials.to_string()));
        browser.script(&script).as_u64()
    };
    browser.soon("1 denial", || overview_with(1));
    let mut waited = Vec::new();
    for denials in 2..=6 {
        let before = browser.script("return window.overviews.length").as_u64().unwrap();
        assert_eq!(two.check(KEY)["allowed"], false);
        let shown = browser.soon("it is shown", || overview_with(denials));
        waited.push(shown.saturating_sub(before) + 1);
    }
    waited.sort_unstable();
    assert!(waited[2] <= 2, "the denials were in these overviews, counted from the next: {waited:?}");
    browser.shows("#nodes", "missing: it does not answer within a second");
    without_complaints(&browser);
}

/// The story: a caller is known by its key, and the tail shows digests, so that no typed key found its lines. Its text
/// finds them, alone or with the name of the attribute, and is shown nowhere.
#[test]
fn the_tail_is_filtered_by_a_credential() {
    let server = server(POLICY);
    for key in ["key3", "other"] {
        let body = json!({ "attributes": { "api_key": key } }).to_string();
        (0..7).for_each(|_| drop(server.check(&body)));
    }
    let browser = logged_in(&server, TOKEN, Scripts::On);
    browser.click("#tail-toggle");
    let digests = ["key3", "other"].map(|key| tollgate::CredentialDigest::of(key).to_string());
    digests.iter().for_each(|digest| browser.shows("#tail-events", digest));
    for typed in ["key3", "api_key=key3", &digests[0]] {
        browser.script("document.getElementById('tail-filter').value = ''");
        browser.enter("#tail-filter", typed);
        browser.soon("only its lines are shown", || {
            let shown = browser.text("#tail-events");
            (shown.contains(&digests[0]) && !shown.contains(&digests[1])).then_some(())
        });
        assert!(!browser.text("main").contains("key3"));
    }
    browser.script("document.getElementById('tail-filter').value = ''");
    browser.enter("#tail-filter", "tenant=key3");
    browser.soon("another attribute has no such value", || {
        browser.text("#tail-events").is_empty().then_some(())
    });
    without_complaints(&browser);
}

/// The story: the chart of a limit stood still once no node counted the limit any more, and showed its last second as now.
#[test]
fn a_chart_goes_on_when_its_limit_is_gone() {
    let scratch = Scratch::new();
    scratch.write("policy.yaml", POLICY);
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "policy.yaml"]);
    command.current_dir(scratch.folder()).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let browser = logged_in(&server, TOKEN, Scripts::On);
    (0..8).for_each(|_| drop(server.check(KEY)));
    browser.soon("the limit can be chosen", || {
        let script = "const select = document.getElementById('rates-limit'); select.value = 'per-key'; \
                      select.dispatchEvent(new Event('change')); return select.value === 'per-key';";
        browser.script(script).as_bool().filter(|chosen| *chosen)
    });
    let drawn = || {
        let script = "return document.querySelector('#chart .denied')?.getAttribute('points') ?? '';";
        browser.script(script).as_str().unwrap().to_owned()
    };
    // The top of the drawing is the second with the most decisions, and all of these are denied.
    browser.soon("its denials are drawn", || {
        (0..5).for_each(|_| drop(server.check(KEY)));
        drawn().contains(",10 ").then_some(())
    });
    scratch.replace("policy.yaml", "limits: [{name: all, rate: 1000/h}]");
    ask(&server, TOKEN, "POST", "/admin/v1/reload", "{}");
    browser.shows("#changes", "removed per-key");
    let changes = browser.text("#changes");
    assert!(["owner (admin)", "a change of the file"].iter().any(|who| changes.contains(who)), "{changes}");
    // The story: its row vanished with it, and what it had denied with the row.
    browser.soon("its denials stay, marked", || {
        row(&browser, "limits", "per-key").starts_with("per-key\tremoved\t").then_some(())
    });
    let before = drawn();
    browser.soon("its time goes on", || (drawn() != before).then_some(()));
    assert!(drawn().contains(",10 "), "its history stays: {}", drawn());
    assert_eq!(browser.script("return document.getElementById('rates-limit').value"), "per-key");
    without_complaints(&browser);
}

/// Two servers on one Redis: the console shows the store and that it is shared; a denial decided at the other server
/// shows in the explanation here, and a reset, a block, a kill and a restore here hold there.
#[test]
fn the_console_of_a_fleet() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    one.joined();
    two.joined();
    let browser = logged_in(&one, TOKEN, Scripts::On);
    browser.shows("#strip", "answers, 2 servers share it");
    browser.shows("#store", "breaker closed");
    for _ in 0..8 {
        two.check(KEY);
    }
    browser.enter("#ask-key", "api_key=k");
    browser.click("#ask-form button");
    browser.shows("#answer", "Yes, limit per-key denies it");
    one.check(KEY);
    open(&browser, "keys", DIGEST);
    press_offer(&browser, "Reset its counters");
    browser.shows("#act-result", "1 counter was reset: per-key");
    browser.soon("the other server admits it", || (two.check(KEY)["allowed"] == true).then_some(()));
    press_offer(&browser, "Block for 10 min");
    browser.shows("#act-result", "is blocked until");
    assert_eq!(one.check(KEY)["cause"], "operator-block");
    browser.soon("the block holds on the other server", || {
        (two.check(KEY)["cause"] == "operator-block").then_some(())
    });
    let spent = r#"{"attributes":{"api_key":"spent"}}"#;
    browser.soon("the other server denies it", || (two.check(spent)["allowed"] == false).then_some(()));
    open(&browser, "limits", "per-key");
    press_offer(&browser, "Turn off for 10 min");
    browser.shows("#act-result", "limit per-key: off until");
    browser.shows("#strip", "1 limit off, 1 block");
    browser
        .soon("the limit is off on the other server", || (two.check(spent)["allowed"] == true).then_some(()));
    press_offer(&browser, "Restore");
    browser.shows("#act-result", "limit per-key: restored");
    browser.soon("the limit holds again on the other server", || {
        (two.check(spent)["allowed"] == false).then_some(())
    });
    browser.soon("the other node's numbers are included", || {
        row(&browser, "nodes", &two.address.to_string()).contains("\tincluded\tin step\t").then_some(())
    });
    browser.shows("#strip", "clocks\nin step");
    browser.shows("#strip", "sums over 2 of 2");
    let asked = |browser: &Browser| {
        let row = row(browser, "verdicts", "allow");
        row.split('\t').nth(3).and_then(|count| count.parse::<u64>().ok())
    };
    let before = asked(&browser).unwrap();
    let other = r#"{"attributes":{"api_key":"elsewhere"}}"#;
    (0..5).for_each(|_| drop(two.check(other)));
    browser.soon("decisions of the other node are counted here", || {
        asked(&browser).filter(|now| *now >= before + 5)
    });
    browser.shows("#audit", "reset");
    let gone = two.address.to_string();
    drop(two);
    browser.soon("a node that is gone is named", || {
        row(&browser, "nodes", &gone).contains("missing: it cannot be reached").then_some(())
    });
    browser.shows("#strip", &format!("sums over 1 of 2; without {gone}"));
    without_complaints(&browser);
}

/// A node that decides by another policy is pointed out: a change has not reached all nodes.
#[test]
fn another_policy_is_pointed_out() {
    let (redis, scratch) = (Redis::start(&[]), Scratch::new());
    let start = |name: &str, rate: &str| {
        scratch.write(name, &format!("limits: [{{name: per-key, by: [api_key], rate: {rate}}}]"));
        let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", name, "--store", &redis.url()];
        let mut command = tollgate(&arguments);
        command.current_dir(scratch.folder()).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        Server::spawn(command, "")
    };
    let one = start("one.yaml", "5/h");
    let browser = logged_in(&one, TOKEN, Scripts::On);
    browser.shows("#strip", "one.yaml");
    assert!(!browser.text("#strip").contains("another"), "{}", browser.text("#strip"));
    let _two = start("two.yaml", "6/h");
    browser.shows("#strip", "another one is active on 1 node");
    without_complaints(&browser);
}

/// The story: when the server was gone, the page kept its last numbers, and a button that was pressed stayed disabled
/// and said nothing.
#[test]
fn old_numbers_do_not_pass_for_new_ones() {
    let server = server(POLICY);
    let browser = logged_in(&server, TOKEN, Scripts::On);
    server.check(KEY);
    browser.shows("#state", "live");
    open(&browser, "keys", DIGEST);
    drop(server);
    browser.shows("#state", "NOT LIVE: the server does not answer; the numbers are of 20");
    press_offer(&browser, "Block for 10 min");
    browser.shows("#act-result", "whether it was done is not known");
    assert_eq!(browser.script("return document.querySelectorAll('.offer button:disabled').length"), 0);
}

/// A pasted policy decides about the requests of the last hour, and nothing is put into force. A change of the policy can be looked
/// at in the same way.
#[test]
fn a_candidate_is_tried_on_the_last_hour() {
    let scratch = Scratch::new();
    scratch.write("policy.yaml", POLICY);
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "policy.yaml"]);
    command.current_dir(scratch.folder()).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let browser = logged_in(&server, TOKEN, Scripts::On);
    (0..4).for_each(|_| drop(server.check(KEY)));
    browser.shows("#keys", DIGEST);
    let stricter = "limits: [{name: per-key, by: [api_key], rate: 1/h}, {name: all, rate: 1000/h}]";
    browser.enter("#what-if-policy", "limits: [{name: x, rate: never}]");
    browser.click("#what-if-form button");
    browser.shows("#what-if-answer", "never");
    browser.script("document.getElementById('what-if-policy').value = ''");
    browser.enter("#what-if-policy", stricter);
    browser.click("#what-if-form button");
    browser
        .shows("#what-if-answer", "3 of 4 decisions would have been others: 3 newly denied, 0 newly allowed");
    browser.shows("#what-if-keys", DIGEST);
    browser.shows("#what-if-answer", "tollgate policy diff candidate.yaml --live --last 1h");
    assert_eq!(server.check(KEY)["allowed"], true, "nothing is in force");
    scratch.replace("policy.yaml", stricter);
    ask(&server, TOKEN, "POST", "/admin/v1/reload", "{}");
    browser.shows("#changes", "changed per-key: each");
    browser.click("#what-if-form button[name=change]");
    browser.shows("#what-if-answer", "The last change of the policy");
    browser.shows("#what-if-answer", "newly denied");
    // The refusal of the wrong policy is all that the browser complains of.
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|complaint| complaint.contains("what-if")), "{complaints:?}");
}

/// A viewer sees everything but the audit log, and is offered nothing.
#[test]
fn a_viewer_only_looks() {
    let scratch = Scratch::new();
    let tokens = scratch.file("tokens", "viewer vera viewer-token-0123456789\n");
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-tokens", &tokens];
    let server = Server::spawn(tollgate(&arguments), POLICY);
    server.check(KEY);
    let browser = logged_in(&server, "viewer-token-0123456789", Scripts::On);
    browser.shows("header", "vera (viewer)");
    open(&browser, "keys", DIGEST);
    browser.shows("#act-about", "No, such a request passes now");
    assert_eq!(browser.script("return document.querySelectorAll('.offer').length"), 0);
    assert_eq!(browser.text("#audit"), "");
    without_complaints(&browser);
}

/// Whatever callers call themselves, in every attribute and on every panel: nothing of it runs, nothing of it becomes an
/// element, and the browser's security policy had nothing to refuse.
#[test]
fn hostile_callers_write_nothing_into_the_page() {
    let policy = "limits: [{name: per-user, by: [user], rate: 2/h}, {name: per-path, by: [path], rate: 2/h}, \
                  {name: per-agent, by: [agent], rate: 2/h}, {name: pair, by: [user, agent], rate: 2/h}, \
                  {name: '<img src=x onerror=window.broken=2>', by: [tenant], rate: 2/h}]";
    let server = server(policy);
    let browser = logged_in(&server, TOKEN, Scripts::On);
    browser.click("#tail-toggle");
    browser.shows("#tail-toggle", "Stop");
    let hostile = [
        "<img src=x onerror=window.broken=1>",
        "<script>window.broken=1</script>",
        "\"><svg onload=window.broken=1>",
        "'><b id=broken>",
        "javascript:window.broken=1",
        "</textarea></title><script>window.broken=1</script>",
        "&lt;script&gt;window.broken=1&lt;/script&gt;",
        "${window.broken=1}{{form_token}}",
        "\u{202e}\u{0}\n\r\u{2028}data: {}\n\nevent: overview",
    ];
    for value in hostile {
        let attributes =
            json!({ "user": value, "path": format!("/{value}"), "agent": value, "tenant": value });
        let body = json!({ "attributes": attributes });
        for _ in 0..4 {
            server.send("POST", "/v1/check", &body.to_string());
        }
    }
    browser.shows("#keys", "user=<img src=x onerror=window.broken=1>");
    browser.shows("#near", "onerror=window.broken=1>");
    browser.shows("#tail-events", "<svg onload=window.broken=1>");
    for key in ["user=<img src=x onerror=window.broken=1>", "user='><b id=broken>"] {
        open(&browser, "keys", key);
        press_offer(&browser, "Block for 10 min");
        browser.shows("#act-result", "is blocked until");
    }
    open(&browser, "limits", "<img src=x onerror=window.broken=2>");
    press_offer(&browser, "Turn off for 10 min");
    browser.shows("#act-result", "off until");
    let noted = json!({ "attributes": { "user": "u" }, "for": "10m", "note": "<img src=x onerror=window.broken=3>", "anyway": true });
    assert_eq!(ask(&server, TOKEN, "POST", "/admin/v1/block", &noted.to_string()).status, 200);
    browser.shows("#audit", "<img src=x onerror=window.broken=3>");
    browser.shows("#overrides", "<img src=x onerror=window.broken=2>");
    browser.shows("#overrides", "<img src=x onerror=window.broken=1>");
    browser.shows("#audit", "<img src=x onerror=window.broken=1>");
    browser.enter("#ask-key", "user='<img src=x onerror=window.broken=1>'");
    browser.click("#ask-form button");
    browser.shows("#answer", "Yes, ");
    let broken = "return Boolean(window.broken) || document.querySelectorAll('main img, main script, #broken, main svg[onload]').length";
    assert_eq!(browser.script(broken), 0);
    without_complaints(&browser);
    // The page that the server draws, with the same keys.
    browser.open(&format!("http://{}/console", server.address));
    browser.shows("#keys", "user=<img src=x onerror=window.broken=1>");
    assert_eq!(browser.script(broken), 0);
    without_complaints(&browser);
}

/// Without scripts the tables are there, and every action is a form.
#[test]
fn without_scripts_there_are_tables_and_forms() {
    let server = server(POLICY);
    server.check(KEY);
    let browser = Browser::start(Scripts::Off);
    browser.open(&format!("http://{}/console", server.address));
    browser.enter("#token", TOKEN);
    browser.click("button");
    browser.click("#keys td.open a");
    browser.click("form.offer button");
    browser.click("main a");
    browser.click("#ask-key");
    browser.enter("#ask-key", "api_key=k");
    browser.click("#ask-form button");
    assert!(browser.url().ends_with("/console/act"), "{}", browser.url());
    assert_eq!(server.check(KEY)["cause"], "operator-block");
}

/// On a telephone nothing is cut off, and with the keyboard alone a key is opened and closed.
#[test]
fn small_screens_and_keyboards_suffice() {
    let server = server(POLICY);
    server.check(KEY);
    let browser = logged_in(&server, TOKEN, Scripts::On);
    browser.shows("#keys", DIGEST);
    browser.resize(360, 740);
    browser.soon("the page is as wide as the screen", || {
        (browser.script("return document.documentElement.scrollWidth").as_u64()? <= 360).then_some(())
    });
    browser.script("document.querySelector('#keys a').focus()");
    browser.press(ENTER);
    browser.shows("#act-title", DIGEST);
    // The story: the name of a key made the page wider than the screen.
    assert_eq!(browser.script("return document.documentElement.scrollWidth"), 360);
    assert_eq!(browser.script("return document.activeElement.id"), "act-title");
    browser.press(TAB);
    assert_eq!(browser.script("return document.activeElement.id"), "act-close");
    browser.press(ESCAPE);
    browser.soon("it is closed", || {
        browser.script("return document.getElementById('act').hidden").as_bool().filter(|is| *is)
    });
    without_complaints(&browser);
}

/// The pictures of the documentation are small, and are those of the real console. `TOLLGATE_PICTURES=$PWD/docs/pictures`
/// writes them.
#[test]
fn pictures_of_the_console() {
    let policy = "limits:\n  - {name: per-key, by: [api_key], rate: 40/s, burst: 60}\n  - {name: login, by: [ip], when: {path: /login}, \
                  rate: 30/min}\n  - {name: search, by: [tenant], rate: 20/s, mode: shadow}\n  - {name: everybody, rate: 5000/s}\n";
    let scratch = Scratch::new();
    scratch.write("policy.yaml", policy);
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "policy.yaml"]);
    command.current_dir(scratch.folder()).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let browser = logged_in(&server, TOKEN, Scripts::On);
    let tenants = ["acme", "globex", "initech", "umbrella"];
    for round in 0..PICTURED {
        for (caller, tenant) in tenants.iter().enumerate() {
            for _ in 0..(6 - caller) * (1 + round / 12 % 3) {
                let body = json!({ "attributes": {
                    "api_key": format!("key-{caller}"), "tenant": tenant, "ip": format!("192.0.2.{caller}"),
                    "path": if round % 9 == caller { "/login" } else { "/search" },
                } });
                server.check(&body.to_string());
            }
        }
        tollgate_testkit::rest(std::time::Duration::from_millis(120));
    }
    ask(&server, TOKEN, "POST", "/admin/v1/shadow", r#"{"limit":"login","for":"10m"}"#);
    ask(
        &server,
        TOKEN,
        "POST",
        "/admin/v1/block",
        r#"{"attributes":{"ip":"198.51.100.7"},"for":"10m","note":"scanner"}"#,
    );
    browser.shows("#overrides", "198.51.100.7");
    browser.shows("#keys", "tenant=acme");
    let pictures =
        [("light", 1280, 1000, "light"), ("dark", 1280, 1000, "dark"), ("small", 360, 780, "light")];
    for (name, width, height, scheme) in pictures {
        browser.resize(width, height);
        browser.prefer(scheme);
        browser.script("window.scrollTo(0, 0)");
        tollgate_testkit::rest(std::time::Duration::from_millis(1_500));
        let picture = browser.picture();
        assert!(
            picture.starts_with(b"\x89PNG") && picture.len() < 150 << 10,
            "{name}: {} bytes",
            picture.len()
        );
        if let Some(folder) = std::env::var_os("TOLLGATE_PICTURES") {
            std::fs::write(Path::new(&folder).join(format!("console-{name}.png")), picture).unwrap();
        }
    }
    without_complaints(&browser);
}
