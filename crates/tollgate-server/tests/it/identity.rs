//! One identity: a credential is the same on every way in and for every operator, by its text or by its digest, and its text is seen
//! nowhere.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tollgate::CredentialDigest;
use tollgate_testkit::Scratch;
use tollgate_tower::attributes::callers::Callers;

pub(crate) use tollgate_testkit::identity::{ask_everywhere, command, gateway, key, success_of as printed};

use crate::admin_verbs::operate;
use crate::gateway_upstream::{Gateway, Upstream};
use crate::guide::{Last, blocks, first, shell, succeeded};
use crate::program::{Server, stderr, stdout};
use crate::raw_http::request;
use crate::rls::{self, Client};

const GUIDE: &str = include_str!("../../../../docs/callers.md");

/// `docs/callers.md` is run: its file is made by its commands, and its policy served with it.
#[test]
fn the_guide_is_true() {
    let (blocks, scratch, upstream) = (blocks(GUIDE), Scratch::new(), Upstream::start());
    let (mut started, mut last) = (None::<Gateway>, Last::default());
    for (language, block) in &blocks {
        match *language {
            "sh" => {
                let address = started.as_ref().map(|gateway| gateway.address.to_string()).unwrap_or_default();
                let mut shell = shell(&format!("set -eu\n{}", block.replace("127.0.0.1:8000", &address)));
                shell.current_dir(scratch.path("")).env_remove("TOLLGATE_CALLERS");
                last.ran(block, succeeded(shell).0);
            }
            "sh serve" => {
                assert!(block.contains("--policy policy.yaml --callers callers.yaml --upstream"), "{block}");
                let more = ["--callers", &scratch.text("callers.yaml")];
                started = Some(gateway(&upstream, first(&blocks, "yaml policy"), &more));
            }
            "yaml callers" => {
                let callers = Callers::read("callers.yaml", block.as_bytes()).unwrap();
                assert!(["k1", "k2"].iter().all(|key| callers.find(&CredentialDigest::of(key)).is_some()));
            }
            "yaml credentials" => {
                fs::write(scratch.path("config.yaml"), block).unwrap();
                let config = scratch.text("config.yaml");
                let checked =
                    crate::program::run(&["policy", "check", "-", "--config", &config], b"limits: []");
                assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
            }
            other => last.compare(other, block),
        }
    }
    last.at_least(3);
}

/// The story: `tollgate block api_key=k2` said "blocked", and k2 went on getting 200; `explain` said "3 of 3 left" for a client that was refused.
#[test]
fn operators_name_credentials_as_they_are() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "limits: [{name: per-key, by: [api_key], rate: 3/h}]", &[]);
    let statuses = |credential: &str, times: usize| -> Vec<u16> {
        (0..times).map(|_| gateway.get("/", &key(credential)).status).collect()
    };
    assert!(printed(&gateway.server, "block api_key=k2 --for 10m").contains("is blocked until"));
    assert_eq!(statuses("k2", 2), [429, 429]);
    assert!(printed(&gateway.server, "explain api_key=k2").contains("blocked by an operator"));
    assert!(printed(&gateway.server, "unblock api_key=k2").contains("unblocked"));
    assert_eq!(statuses("k2", 4), [200, 200, 200, 429]);
    assert!(printed(&gateway.server, "explain api_key=k2").contains("per-key: denies"));
    printed(&gateway.server, "reset api_key=k2");
    assert!(printed(&gateway.server, "get api_key=k2").contains("3 of 3"));
    assert_eq!(statuses("k2", 1), [200]);
}

/// The story: `overrides: {vip: 100/h}` did nothing at the gateway. What a policy names plainly holds wherever the credential comes in.
#[test]
fn policies_name_credentials_as_they_are() {
    const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 2/h, overrides: {vip: 4/h}}
  - {name: tiered, by: [api_key], tier_by: api_key, tiers: {vip: 100/h, k3: 1/h}, rate: 50/h}
  - {name: listed, when: {api_key: [k4, k5]}, rate: 1/h}
  - {name: said, when: \"api_key == 'k6'\", rate: 1/h}
";
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, POLICY, &[]);
    let passed =
        |credential: &str| (0..5).filter(|_| gateway.get("/", &key(credential)).status == 200).count();
    assert_eq!([passed("vip"), passed("k1"), passed("k3"), passed("k4"), passed("k6")], [4, 2, 1, 1, 1]);
    // The limit of the list is one counter, which k4 has used up.
    assert_eq!(passed("k5"), 0);
    let explained = printed(&gateway.server, "explain api_key=vip");
    assert!(explained.contains("denies") && !explained.contains("vip"), "{explained}");
}

/// The text of a credential is in no log, no metric, no list, no answer to an operator, no trace of what was said and no file.
///
/// Its only copy is that of the policy in the state directory, which was readable for every user of the machine.
#[test]
fn a_credential_is_seen_nowhere() {
    const SECRET: &str = "s3cr3t-credential-9f2c";
    let policy = format!(
        "limits:
  - {{name: per-key, by: [api_key], rate: 4/h, overrides: {{{SECRET}: 5/h}}}}
  - {{name: said, when: \"api_key == '{SECRET}' || api_key in ['{SECRET}', 'x']\", rate: 3/h}}
  - {{name: listed, when: {{api_key: ['{SECRET}']}}, by: [ip], rate: 100/h}}
"
    );
    let (upstream, state) = (Upstream::start(), Scratch::new());
    let directory = state.text("state");
    state.write("policy.yaml", &policy);
    let address = format!("http://{}", upstream.address);
    let (file, anywhere) = (state.text("policy.yaml"), "127.0.0.1:0");
    let words =
        ["serve", "--http", anywhere, "--gateway", anywhere, "--policy", &file, "--upstream", &address];
    let started = command(&[&words[..], &["--state-dir", &directory]].concat());
    let mut gateway = Gateway::of(Server::spawn(started, ""));
    let mut seen = gateway.server.banner.clone();
    for _ in 0..2 {
        seen += &ask_everywhere(&gateway, SECRET);
    }
    let bearer = format!("Authorization: Bearer {SECRET}\r\nX-API-Key: other\r\n");
    let two = gateway.get("/", &bearer);
    assert_eq!(two.status, 400);
    seen += &String::from_utf8_lossy(&two.body);
    for words in [
        "get api_key=SECRET",
        "explain api_key=SECRET",
        "explain api_key=other",
        "block api_key=SECRET --for 10m --note why",
        "limits",
        "get api_key=SECRET --json",
        "top --once",
        "top --once --json",
        "tail --once",
        "unblock api_key=SECRET",
        "block api_key=SECRET --for 10m --json",
        "reset api_key=SECRET",
        "reset api_key=SECRET --json",
        "audit",
        "audit --json",
    ] {
        seen += &printed(&gateway.server, &words.replace("SECRET", SECRET));
    }
    for path in ["/metrics", "/readyz"] {
        seen += &String::from_utf8_lossy(&gateway.server.send("GET", path, "").body);
    }
    gateway.server.signal("-TERM");
    assert_eq!(gateway.server.wait().code(), Some(0));
    let log = gateway.server.rest_of_log();
    assert!(log.contains("decided") && log.contains("sha256:"), "the log has decisions: {log}");
    seen += &log;
    let files = private_files(Path::new(&directory));
    assert!(files.len() >= 4, "snapshot, orders, pointer and the copy of the policy: {files:?}");
    let mut copies = 0;
    for path in files {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        // The copy of the policy is the policy, and docs/callers.md says so.
        if path
            .parent()
            .and_then(Path::file_name)
            .is_some_and(|name| name.to_string_lossy().starts_with("policy-"))
        {
            assert_eq!(text, policy);
            copies += 1;
            continue;
        }
        seen += &format!("\n{}: {text}", path.display());
    }
    assert_eq!(copies, 1);
    assert!(seen.contains("sha256:"));
    let shown: Vec<&str> = seen.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(shown.is_empty(), "{shown:#?}");
}

/// The files in a directory and below. Only their owner can read them, or look into a directory.
fn private_files(directory: &Path) -> Vec<PathBuf> {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory), 0o700, "{}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(private_files(&path));
        } else {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
            files.push(path);
        }
    }
    files
}

const LIMITS: &str = "limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: per-ip, by: [ip], rate: 100/h}
";

/// The story: a used-up bearer token beside a random `X-API-Key` passed, since only the key was looked at. Two different credentials are
/// refused, on the gateway and on authz, until the config says which one the service reads.
#[test]
fn two_different_credentials_are_refused() {
    let upstream = Upstream::start();
    let plain = gateway(&upstream, LIMITS, &[]);
    let both = |key: &str| format!("X-API-Key: {key}\r\nAuthorization: Bearer t1\r\n");
    for _ in 0..3 {
        assert_eq!(plain.get("/", "Authorization: bearer\tt1\r\n").status, 200);
    }
    let refused = plain.get("/", &both("random"));
    assert_eq!(refused.status, 400);
    let refused = String::from_utf8(refused.body).unwrap();
    assert!(refused.contains("x-api-key and authorization hold different ones"), "{refused}");
    assert_eq!((plain.get("/", &both("t1")).status, plain.get("/", &key("t1")).status), (429, 429));
    let held = format!("GET /v1/authz HTTP/1.1\r\nHost: a\r\n{}\r\n", both("random"));
    plain.server.exchange(held.as_bytes()).problem(400);
    assert_eq!(upstream.seen().len(), 3);

    let scratch = Scratch::new();
    fs::write(scratch.path("config.yaml"), "credentials: [bearer, {cookie: sid}]\n").unwrap();
    let chosen = gateway(&upstream, LIMITS, &["--config", &scratch.text("config.yaml")]);
    let statuses: Vec<u16> = (0..5).map(|n| chosen.get("/", &both(&format!("random-{n}"))).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    // Every spelling of a cookie is one session, and it is known by its text.
    for spelled in ["sid=abc", "sid=\"abc\"", "a=1; sid=%61bc"] {
        assert_eq!(chosen.get("/", &format!("Cookie: {spelled}\r\n")).status, 200, "{spelled}");
    }
    assert_eq!(chosen.get("/", "Cookie: sid=\"%61%62c\"\r\n").status, 429);
    assert!(printed(&chosen.server, "get api_key=abc").contains("0 of 3"));
    for wrong in ["sid=a; sid=b", "sid=\"a", "s%69d=abc"] {
        assert_eq!(chosen.get("/", &format!("Cookie: {wrong}\r\n")).status, 400, "{wrong}");
    }
    assert_eq!(chosen.get("/", "Cookie: sid=abc\r\nAuthorization: Bearer t2\r\n").status, 400);
}

/// The story: one credential had many spellings that services accept, and each was a fresh quota or none at all: a JWT with other
/// characters behind it anywhere but in `Authorization`, with a fourth segment, or with the other signature that ES256 accepts; a cookie
/// behind a space, where Python finds it; names that PHP reads as the credential's. Each is the one identity now, or refused.
#[test]
fn respelled_credentials_have_no_fresh_quota() {
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAECAw";
    let es256 = |last: &str| format!("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.{}{last}", "r".repeat(42));
    let (one, twin) = (es256(&"s".repeat(43)) + "A", es256(&"t".repeat(43)) + "Q");
    let (upstream, scratch) = (Upstream::start(), Scratch::new());
    let jwts: Vec<String> =
        ["=", "==", "~~~~", "~~~~~~~~", ".x1", "."].map(|end| format!("{TOKEN}{end}")).into();
    let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let cases = [
        ("{header: X-Access-Token}", "/", "X-Access-Token: *\r\n", TOKEN, jwts.clone()),
        ("{header: X-API-Key}", "/", "X-API-Key: *\r\n", TOKEN, jwts.clone()),
        ("bearer", "/", "Authorization: Bearer *\r\n", TOKEN, jwts.clone()),
        ("{cookie: jwt}", "/", "Cookie: jwt=*\r\n", TOKEN, jwts.clone()),
        ("{query: key}", "/?key=*", "", TOKEN, jwts),
        ("bearer", "/", "Authorization: Bearer *\r\n", one.as_str(), vec![twin]),
        (
            "{cookie: my_sid}",
            "/",
            "Cookie: *\r\n",
            "my_sid=abc",
            texts(&[
                "x=1 my_sid=abc",
                "x=1\tmy_sid=abc",
                "my_sid=fake; x=1 my_sid=abc",
                "my_sid=abc x=1",
                "x=1,my_sid=abc",
                "my.sid=abc",
                "my sid=abc",
                "my[sid=abc",
                "MY_SID=abc",
            ]),
        ),
        (
            "{query: api_key}",
            "/?*",
            "",
            "api_key=a",
            texts(&["api.key=a", "api[key=a", "api%5Bkey=a", "api%5bkey=a"]),
        ),
    ];
    for (place, target, field, credential, respelled) in cases {
        fs::write(scratch.path("config.yaml"), format!("credentials: [{place}]\n")).unwrap();
        let policy = "limits: [{name: per-key, by: [api_key], rate: 2/h}]";
        let gateway = gateway(&upstream, policy, &["--config", &scratch.text("config.yaml")]);
        let ask = |text: &str| gateway.get(&target.replace('*', text), &field.replace('*', text)).status;
        assert_eq!([ask(credential), ask(credential), ask(credential)], [200, 200, 429], "{place}");
        for text in respelled {
            let status = ask(&text);
            let expected = if text.len() == one.len() { 429 } else { 400 };
            assert_eq!(status, expected, "{place}: {text}");
        }
        assert_eq!(upstream.seen().len(), 2, "{place}");
    }
}

/// `Authorization: tok` met no limit by the key, on the gateway, `/v1/authz` and in the middleware, and a service that cuts `Bearer` off if
/// it is there served it as the token. It is the token's identity; a scheme that is joined to its token is refused.
#[test]
fn a_token_without_a_scheme_is_counted() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "limits: [{name: per-key, by: [api_key], rate: 2/h}]", &[]);
    let ask = |value: &str| gateway.get("/", &format!("Authorization: {value}\r\n")).status;
    assert_eq!([ask("Bearer tok"), ask("tok"), ask("tok"), ask("bearer tok")], [200, 200, 429, 429]);
    assert_eq!([ask("Bearer:tok"), ask("Bearertok"), ask("other")], [400, 400, 200]);
    let authz = |value: &str| {
        let head = request("GET", "/v1/authz", &format!("Authorization: {value}\r\n"), b"");
        gateway.server.exchange(&head).status
    };
    assert_eq!(
        [authz("tok"), authz("Bearer tok"), authz("Bearer:tok"), authz("other")],
        [429, 429, 400, 200]
    );
    assert_eq!(authz("other"), 429);
}

/// The story: an invented key was a fresh quota, also with `first_of: [api_key, ip]`: 12 of 12 passed a limit of 3 an hour. With a callers
/// file an unknown credential is no identity, on every way in, and known ones have their attributes.
#[test]
fn invented_credentials_count_by_address() {
    const POLICY: &str = "limits:
  - {name: caller, by: [caller], rate: 3/h}
  - {name: plan, by: [tenant], tier_by: plan, tiers: {free: 1/h, pro: 2/h}}
  - {name: attributes, by: [api_key], rate: 20/h}
";
    let (upstream, scratch) = (Upstream::start(), Scratch::new());
    let config = "callers: CALLERS\nattributes: {caller: {first_of: [api_key, ip]}}\n";
    let callers = scratch.text("callers.yaml");
    fs::write(scratch.path("config.yaml"), config.replace("CALLERS", &callers)).unwrap();
    let edit = |words: &str, input: &str| {
        let arguments: Vec<&str> = words.split(' ').chain(["--file", &callers]).collect();
        let output = crate::program::run(&[&["callers"], &arguments[..]].concat(), input.as_bytes());
        (output.status.code().unwrap(), stdout(&output) + &stderr(&output))
    };
    assert_eq!(edit("add k1 tenant=acme plan=pro", "").0, 0);
    assert_eq!(edit("add - tenant=other plan=free", "k2\n").0, 0);
    assert_eq!(edit("add k1 tenant=acme", "").0, 1, "known already");
    let written = fs::read_to_string(&callers).unwrap();
    assert!(
        !written.contains("k1") && !written.contains("k2") && written.contains("tenant: acme"),
        "{written}"
    );
    let gateway = gateway(&upstream, POLICY, &["--config", &scratch.text("config.yaml")]);
    let invented: Vec<u16> =
        (0..12).map(|n| gateway.get("/", &key(&format!("invented-{n}"))).status).collect();
    assert_eq!(invented.iter().filter(|status| **status == 200).count(), 3, "{invented:?}");
    let passed =
        |credential: &str| (0..4).filter(|_| gateway.get("/", &key(credential)).status == 200).count();
    assert_eq!((passed("k1"), passed("k2")), (2, 1), "by their plans");
    // Nothing that a request says is its tenant or its plan, and every way in knows the callers.
    assert_eq!(gateway.get("/", "X-API-Key: k2\r\ntenant: fresh\r\nX-Plan: pro\r\n").status, 429);
    let asked = gateway.server.check(r#"{"attributes":{"api_key":"k2"}}"#);
    assert!(asked["allowed"] == false && asked.to_string().contains("plan"), "{asked}");
    assert!(gateway.server.resp_exchange(b"TG.CHECK api_key k2\r\nQUIT\r\n").contains("deny"));
    let rls = Client::new(gateway.server.grpc.unwrap());
    assert!(rls::shown(&rls.ask(rls::question("d", 1, "api_key=k2")).unwrap()).starts_with("OVER"));
    let explained = printed(&gateway.server, "explain api_key=k2");
    assert!(explained.contains("plan: denies") && explained.contains("the tier plan=free"), "{explained}");
    assert!(
        printed(&gateway.server, "explain api_key=k3")
            .contains("the callers file does not know this credential")
    );
    let refused = operate(&gateway.server, &["block", "api_key=k3", "--for", "1m"]).output().unwrap();
    assert!(
        stderr(&refused).contains("name the ip"),
        "a block that would do nothing is refused: {}",
        stderr(&refused)
    );

    let reset = operate(&gateway.server, &["reset", "api_key=k3"]).output().unwrap();
    assert_eq!(reset.status.code(), Some(1));
    assert!(stdout(&reset).contains("the callers file does not know this credential"), "{}", stdout(&reset));

    // The file is live, and one that is wrong changes nothing.
    let known = |number: u64| gateway.server.metric("tollgate_callers") == number;
    assert_eq!(edit("add k3 tenant=third plan=pro", "").0, 0);
    crate::gateway_upstream::until(|| known(3));
    assert_eq!(passed("k3"), 2);
    fs::write(&callers, written.replace("sha256: ", "sha256: x")).unwrap();
    crate::gateway_upstream::until(|| gateway.server.metric("tollgate_callers_last_reload_successful") == 0);
    assert!(known(3) && gateway.get("/", &key("k3")).status == 429, "k3 is known still");
    let ready = gateway.server.send("GET", "/readyz", "").json();
    assert_eq!(ready["status"], "degraded");
    assert!(ready["callers"]["error"]["text"].as_str().unwrap().contains("is no SHA-256"), "{ready}");
    fs::write(&callers, &written).unwrap();
    crate::gateway_upstream::until(|| {
        known(2) && gateway.server.metric("tollgate_callers_last_reload_successful") == 1
    });
}

/// Adding and removing callers leaves every other line as it is, comments included, and refuses what it cannot edit so.
#[test]
fn the_callers_file_keeps_its_comments() {
    let scratch = Scratch::new();
    let file = scratch.text("callers.yaml");
    let text = "# ours\ncallers:\n  # the first\n  - key: s3cret\n    plan: pro\n  - {key: k2, plan: free} # second\n";
    fs::write(&file, text).unwrap();
    let edit = |words: &[&str]| {
        let output = crate::program::run(&[&["callers"], words, &["--file", &file]].concat(), b"");
        (output.status.code().unwrap(), stdout(&output) + &stderr(&output))
    };
    let (code, listed) = edit(&["list"]);
    assert!(code == 0 && listed.contains("plan=pro") && listed.contains("2 callers known"), "{listed}");
    assert!(!listed.contains("s3cret") && !listed.contains("k2"), "{listed}");
    assert_eq!(edit(&["add", "k3", "tenant=it's \"a\" test", "flag=yes"]).0, 0);
    assert_eq!(edit(&["remove", "s3cret"]).0, 0);
    let (code, printed) = edit(&["remove", "s3cret"]);
    assert!(code == 1 && printed.contains("nothing was removed") && !printed.contains("s3cret"), "{printed}");
    let kept = fs::read_to_string(&file).unwrap();
    assert!(
        kept.starts_with(
            "# ours\ncallers:\n  # the first\n  - {key: k2, plan: free} # second\n  - {sha256: "
        ),
        "{kept}"
    );
    let listed = edit(&["list"]).1;
    assert!(listed.contains("flag=yes tenant=it's \"a\" test"), "{listed}");
    let flow = "callers: [{key: k1, plan: a}, {key: k2, plan: b}]\n";
    fs::write(&file, flow).unwrap();
    for words in [&["add", "k3", "plan=c"][..], &["remove", "k1"]] {
        let (code, printed) = edit(words);
        assert!(code == 2 && printed.contains("by hand"), "{printed}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), flow);
    assert_eq!(edit(&["add", "k3", "ip=1.2.3.4"]).0, 2);
    fs::remove_file(&file).unwrap();
    assert!(edit(&["list"]).1.contains("no such file"));
}

/// `policy check` and the start of a gateway warn where strangers choose what a limit counts by, and what they advise settles it.
#[test]
fn evadable_limits_are_warned_about() {
    let check = |policy: &str, more: &[&str]| {
        let output = crate::program::run(&[&["policy", "check", "-"], more].concat(), policy.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    let doubt = "limits[0] \"a\".by: counts by api_key, which a stranger can invent";
    let alone = "limits: [{name: a, by: [api_key], rate: 3/h}]";
    let warned = check(alone, &[]);
    assert!(
        warned.contains(doubt) && warned.contains("`by: [ip]`") && warned.contains("callers file"),
        "{warned}"
    );
    assert_eq!(
        check("limits: [{name: a, by: [api_key], rate: 3/h}, {name: b, by: [ip], rate: 9/h}]", &[]),
        ""
    );
    let scratch = Scratch::new();
    fs::write(scratch.path("callers.yaml"), "callers: [{key: k1, plan: pro}]\n").unwrap();
    let config = |callers: &str| {
        let text = format!("attributes: {{caller: {{first_of: [api_key, ip]}}}}\n{callers}");
        fs::write(scratch.path("config.yaml"), text).unwrap();
        scratch.text("config.yaml")
    };
    let chosen = "limits: [{name: a, by: [caller], rate: 3/h}]";
    assert!(
        check(chosen, &["--config", &config("")]).contains("counts by caller, which a stranger can invent")
    );
    let known = format!("callers: {}\n", scratch.text("callers.yaml"));
    assert_eq!(check(chosen, &["--config", &config(&known)]), "");
    let upstream = Upstream::start();
    let mut gateway = gateway(&upstream, alone, &[]);
    gateway.server.await_log("which a stranger can invent");
}

/// The story: with `caller: {first_of: [api_key, ip]}` the gateway refused a client, while `explain api_key=…` said that its request has
/// no caller and passes uncounted. Every way in derives the attribute alike.
#[test]
fn the_first_of_several_is_one_on_every_way_in() {
    let (upstream, scratch) = (Upstream::start(), Scratch::new());
    scratch.write("config.yaml", "attributes: {caller: {first_of: [api_key, ip]}}\n");
    let policy = "limits: [{name: each, by: [caller], rate: 2/h}]";
    let gateway = gateway(&upstream, policy, &["--config", &scratch.text("config.yaml")]);
    let statuses = [(); 3].map(|()| gateway.get("/", &key("k1")).status);
    assert_eq!(statuses, [200, 200, 429]);
    let explained = printed(&gateway.server, "explain api_key=k1 ip=192.0.2.1");
    assert!(explained.contains("each: denies") && explained.contains("is denied now"), "{explained}");
    assert!(printed(&gateway.server, "get api_key=k1").contains("0 of 2"));
    let passes = printed(&gateway.server, "explain ip=192.0.2.1");
    assert!(passes.contains("each: passes, 2 of 2 left"), "{passes}");
    let asked = gateway.server.check(r#"{"attributes":{"api_key":"k1","ip":"192.0.2.1"}}"#);
    assert_eq!((&asked["allowed"], &asked["cause"]), (&false.into(), &"each".into()), "{asked}");
    assert!(gateway.server.resp_exchange(b"TG.CHECK api_key k1\r\nQUIT\r\n").contains("deny"));
    let rls = Client::new(gateway.server.grpc.unwrap());
    let shown = rls::shown(&rls.ask(rls::question("d", 1, "ip=192.0.2.1 | api_key=k1")).unwrap());
    assert_eq!(shown, "OVER: OK | OVER each 2/HOUR left 0 in 30", "the address is not who calls");
    let reset = printed(&gateway.server, "reset api_key=k1");
    assert!(reset.contains("1 counter reset: each"), "{reset}");
    assert_eq!(gateway.get("/", &key("k1")).status, 200);
}
