//! The console over raw HTTP: who gets in, what is refused, and what a page may contain. Real browsers drive it in `e2e`.

use std::io::{BufRead, BufReader, Write};

use tollgate_testkit::until;

use crate::admin::{POLICY, Scratch, TOKEN, ask, server};
use crate::guide;
use crate::program::{Server, tollgate};
use crate::raw_http::Response;

const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                               img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
const TOKENS: &str = "viewer vera viewer-token-0123456789\noperator otto operator-token-0123456789\n\
                      admin ada admin-token-0123456789\n";

/// A browser, as far as a cookie and the token of a form make one.
struct Visitor<'s> {
    server: &'s Server,
    cookie: String,
    form_token: String,
}

fn sent(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Response {
    let (host, length) = (server.address, body.len());
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{headers}\r\n");
    server.exchange(&[head.as_bytes(), body.as_bytes()].concat())
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.clone()).unwrap()
}

fn login(server: &Server, token: &str) -> Response {
    sent(server, "POST", "/console/login", "", &format!("token={token}"))
}

impl<'s> Visitor<'s> {
    fn logged_in(server: &'s Server, token: &str) -> Self {
        let response = login(server, token);
        assert_eq!(
            (response.status, response.header("location")),
            (303, Some("/console")),
            "{}",
            text(&response)
        );
        let cookie = response.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let mut visitor = Self { server, cookie, form_token: String::new() };
        let page = visitor.page();
        let (_, rest) = page.split_once("data-form-token=\"").unwrap();
        visitor.form_token = rest.split('"').next().unwrap().to_owned();
        visitor
    }

    fn get(&self, path: &str) -> Response {
        sent(self.server, "GET", path, &format!("Cookie: other=1; {}\r\n", self.cookie), "")
    }

    /// The console, once it has measured.
    fn page(&self) -> String {
        until("the console has measured", || {
            let response = self.get("/console");
            (response.status == 200).then(|| text(&response))
        })
    }

    fn post_with(&self, path: &str, headers: &str, body: &str) -> Response {
        sent(self.server, "POST", path, &format!("Cookie: {}\r\n{headers}", self.cookie), body)
    }

    fn act(&self, form: &str) -> Response {
        let body = format!("{form}&form_token={}", self.form_token);
        self.post_with("/console/act", "Accept: application/json\r\n", &body)
    }
}

fn with_roles() -> (Scratch, Server) {
    let scratch = Scratch::new();
    let tokens = scratch.file("tokens", TOKENS);
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--admin-tokens", &tokens];
    (scratch, Server::start_with(&arguments, POLICY))
}

/// Without a session there is a form and nothing else. With a token there is a session, in a cookie that scripts cannot
/// read and other sites cannot send; it ends with the logout.
#[test]
fn a_session_begins_and_ends() {
    let server = server(POLICY);
    assert!(
        server.banner.contains(&format!("  console http://{}/console\n", server.address)),
        "{}",
        server.banner
    );
    let form = sent(&server, "GET", "/console", "", "");
    assert_eq!(form.status, 200);
    assert!(text(&form).contains("type=\"password\"") && !text(&form).contains("per-key"));
    for path in ["/console/events", "/console/history", "/console/tail", "/console/subject?limit=all"] {
        assert_eq!(sent(&server, "GET", path, "", "").status, 401, "{path}");
    }
    assert_eq!(sent(&server, "POST", "/console/act", "", "verb=kill&limit=all").status, 401);
    let cookie = login(&server, TOKEN).header("set-cookie").unwrap().to_owned();
    assert!(cookie.ends_with("; Path=/console; Max-Age=28800; HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(cookie.starts_with(&format!("tollgate_console_{}=", server.address.port())), "{cookie}");
    assert!(!cookie.contains(TOKEN));
    let visitor = Visitor::logged_in(&server, TOKEN);
    let page = visitor.page();
    assert!(page.contains("per-key") && page.contains("owner (admin)") && !page.contains(TOKEN), "{page}");
    let logout = format!("form_token={}", visitor.form_token);
    assert_eq!(visitor.post_with("/console/logout", "", "form_token=0").status, 403);
    let gone = visitor.post_with("/console/logout", "", &logout);
    assert!(gone.status == 303 && gone.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert!(text(&visitor.get("/console")).contains("type=\"password\""), "the session is over");
}

/// A wrong token gets the form again with the reason, and guesses wait as at the admin API. The token of a form counts
/// nowhere else, and a token in a URL counts nowhere.
#[test]
fn a_wrong_token_is_refused() {
    let server = server(POLICY);
    for number in 0..5 {
        let response = login(&server, &format!("wrong-token-number-{number}"));
        assert_eq!((response.status, response.header("set-cookie")), (401, None));
        assert!(
            text(&response).contains("the token is not known")
                && text(&response).contains("type=\"password\"")
        );
    }
    let refused = login(&server, "wrong-token-number-5");
    assert_eq!(refused.status, 429);
    assert!((1..=12).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(
        ask(&server, "wrong-token-number-6", "GET", "/admin/v1/limits", "").status,
        429,
        "one count of guesses"
    );
    assert_eq!(login(&server, TOKEN).status, 303, "a right token never waits");
    let in_a_url = sent(&server, "GET", &format!("/console?token={TOKEN}"), "", "");
    assert!(text(&in_a_url).contains("type=\"password\""));
    assert_eq!(sent(&server, "GET", &format!("/console/login?token={TOKEN}"), "", "").status, 405);
}

/// Whatever is answered: no other site frames it, loads into it, reads it or keeps it.
#[test]
fn every_answer_is_guarded() {
    let server = server(POLICY);
    let visitor = Visitor::logged_in(&server, TOKEN);
    let answers = [
        visitor.get("/console"),
        visitor.get("/console/console.js"),
        visitor.get("/console/console.css"),
        visitor.get("/console/history"),
        visitor.get("/console/subject?limit=per-key"),
        visitor.get("/console/nothing"),
        visitor.act("verb=explain&key=api_key%3Dk"),
        login(&server, "wrong-token-0123456789"),
        login(&server, TOKEN),
    ];
    for answer in answers {
        assert_eq!(answer.header("content-security-policy"), Some(SECURITY_POLICY), "{answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let page = visitor.page();
    let assets = ["/console/console.js", "/console/console.css"].map(|path| visitor.get(path).body.len());
    assert!(page.len() + assets.iter().sum::<usize>() <= 150 << 10, "{} and {assets:?} bytes", page.len());
    for wrong in ["http://", "https://", "<script>", " onclick", " style=", "javascript:"] {
        assert!(!page.contains(wrong), "the page contains {wrong}");
    }
}

/// A form of another site, or without the token of its session, changes nothing.
#[test]
fn forms_of_other_sites_are_refused() {
    let server = server(POLICY);
    let visitor = Visitor::logged_in(&server, TOKEN);
    let kill = format!("verb=kill&limit=all&form_token={}", visitor.form_token);
    for headers in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        assert_eq!(visitor.post_with("/console/act", headers, &kill).status, 403, "{headers}");
    }
    assert_eq!(visitor.act("verb=kill&limit=all&form_token=0").status, 400, "a field comes once");
    for body in ["verb=kill&limit=all", "verb=kill&limit=all&form_token=0123456789abcdef0123456789abcdef"] {
        assert_eq!(visitor.post_with("/console/act", "", body).status, 403, "{body}");
    }
    let other = Visitor::logged_in(&server, TOKEN);
    let mixed = format!("verb=kill&limit=all&form_token={}", other.form_token);
    assert_eq!(visitor.post_with("/console/act", "", &mixed).status, 403, "the token of another session");
    let limits = ask(&server, TOKEN, "GET", "/admin/v1/limits", "").json();
    assert!(
        limits["limits"].as_array().unwrap().iter().all(|limit| limit.get("own_override").is_none()),
        "{limits}"
    );
    let own = format!("Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\n", server.address);
    assert_eq!(visitor.post_with("/console/act", &own, &kill).status, 200);
    // A link elsewhere leads to the form, because browsers leave the cookie out; a rebound name leads nowhere.
    assert_eq!(sent(&server, "GET", "/console", "Sec-Fetch-Site: cross-site\r\n", "").status, 200);
    let rebound = b"GET /console HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    assert_eq!(server.exchange(rebound).status, 421);
}

/// A viewer is offered nothing and refused everything; an operator changes one thing, an admin all; each is audited under
/// its name, with the command that does the same.
#[test]
fn roles_hold_in_the_console() {
    let (_scratch, server) = with_roles();
    let [vera, otto, ada] = ["viewer", "operator", "admin"]
        .map(|role| Visitor::logged_in(&server, &format!("{role}-token-0123456789")));
    let key = "/console/subject?key=api_key%3Dk&limit=per-key";
    let (seen, offered) = (text(&vera.get(key)), text(&otto.get(key)));
    assert!(seen.contains("No, such a request passes now") && !seen.contains("<button"), "{seen}");
    assert!(
        offered.contains("Block for 10 min") && offered.contains("tollgate block api_key=k --for 10m"),
        "{offered}"
    );
    let detail = vera.act("verb=block&key=api_key%3Dk&for=10m");
    assert_eq!(detail.status, 403);
    assert!(detail.json()["sentence"].as_str().unwrap().contains("needs the role operator"), "{detail:?}");
    let blocked = otto.act("verb=block&key=api_key%3Dk&for=10m");
    assert_eq!(
        (blocked.status, &blocked.json()["command"]),
        (200, &"tollgate block api_key=k --for 10m".into())
    );
    let denied = server.check(r#"{"attributes":{"api_key":"k"}}"#);
    assert_eq!(denied["allowed"], false, "{denied}");
    assert_eq!(otto.act("verb=kill&all=true").status, 403);
    assert_eq!(ada.act("verb=kill&all=true&for=10m").status, 200);
    assert_eq!(ada.act("verb=restore&all=true").status, 200);
    assert!(!vera.page().contains("Who did what") && ada.page().contains("Who did what"));
    let audit = ask(&server, "admin-token-0123456789", "GET", "/admin/v1/audit", "").json().to_string();
    for expected in [r#""verb":"block","who":"otto""#, r#""verb":"block","who":"vera""#, r#""who":"ada""#] {
        assert!(audit.contains(expected), "{expected}: {audit}");
    }
}

/// Whatever a caller calls itself, the page shows it as text, and the console acts on that caller and on no other.
#[test]
fn hostile_keys_are_text() {
    let server = server("limits: [{name: per-user, by: [user], rate: 5/h}]");
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "{{form_token}}",
        "x tenant=other",
        "</td></tr></table><form action=//evil>",
    ];
    for value in hostile {
        let attributes = serde_json::json!({ "attributes": { "user": value } });
        server.check(&attributes.to_string());
    }
    let visitor = Visitor::logged_in(&server, TOKEN);
    let page = until("the keys are shown", || {
        let page = visitor.page();
        page.contains("user=x tenant=other").then_some(page)
    });
    for raw in [
        "<script>",
        "<img",
        "onerror=alert(1)>",
        "' onmouseover='",
        "{{form_token}}",
        "</td></tr></table><form",
    ] {
        let shown = page.replace("{{form_token}}", if raw == "{{form_token}}" { "kept" } else { "" });
        assert!(!shown.contains(raw), "{raw} is in the page");
    }
    assert!(
        page.contains("user=&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("user={{form_token}}")
    );
    // The link of a row leads to exactly the key of the row.
    let query = page.split("/console/subject?").find(|rest| rest.contains("x+tenant%3Dother")).unwrap();
    let query = query.split('"').next().unwrap().replace("&amp;", "&");
    let about = visitor.get(&format!("/console/subject?{query}"));
    assert!(text(&about).contains("<h1>user=x tenant=other</h1>"), "{}", text(&about));
    assert!(
        text(&about).contains("tollgate block &#39;user=x tenant=other&#39; --for 10m"),
        "{}",
        text(&about)
    );
    let left = |user: &str| {
        let body = serde_json::json!({ "attributes": { "user": user }, "cost": 0 }).to_string();
        server.check(&body)["limits"][0]["remaining"].as_u64().unwrap()
    };
    let fields = query.split('&').find(|field| field.starts_with("attributes=")).unwrap();
    assert_eq!(
        visitor.act(&format!("verb=reset&{fields}")).json()["sentence"],
        "1 counter was reset: per-user"
    );
    assert_eq!((left("x tenant=other"), left(hostile[0])), (5, 4));
}

/// The question "am I limited?" has an answer with the instant at which it ends; a pasted header is read, too.
#[test]
fn am_i_limited() {
    let server = server(POLICY);
    let visitor = Visitor::logged_in(&server, TOKEN);
    let question = "verb=explain&key=api_key%3Dk";
    assert_eq!(visitor.act(question).json()["sentence"], "No, such a request passes now.");
    for _ in 0..5 {
        server.check(r#"{"attributes":{"api_key":"k"}}"#);
    }
    let answer = visitor.act(question).json();
    let sentence = answer["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("Yes, limit per-key denies it: 0 of 5 left; it passes again at 20"),
        "{answer}"
    );
    assert!(sentence.contains(", in 12 min") || sentence.contains(", in 11 min"), "{answer}");
    let header = "verb=explain&key=%22per-key%22%3Br%3D0%3Bt%3D30";
    assert!(
        visitor.act(header).json()["sentence"].as_str().unwrap().contains("limit per-key: it was used up")
    );
    let page =
        visitor.post_with("/console/act", "", &format!("{question}&form_token={}", visitor.form_token));
    assert!(text(&page).contains("<p role=\"status\" class=\"bad\">Yes, limit per-key"), "{}", text(&page));
    for (question, advice) in [("k1", "api_key=k1 path="), ("+", "")] {
        let wrong = visitor.act(&format!("verb=explain&key={question}"));
        // A browser logs a status of 400 as an error of the page.
        assert_eq!((wrong.status, &wrong.json()["tone"]), (200, &"bad".into()), "{}", text(&wrong));
        assert!(wrong.json()["sentence"].as_str().unwrap().contains(advice), "{}", text(&wrong));
        let form = format!("verb=explain&key={question}&form_token={}", visitor.form_token);
        assert_eq!(visitor.post_with("/console/act", "", &form).status, 400, "a page has its status");
        assert_eq!(visitor.act(&format!("verb=block&key={question}&for=10m")).status, 400);
    }
}

/// The story: a limit denied the POST requests of a client. Its row said so, and what the row opened was green: "such a
/// request passes now". The console says what `explain` says, and a row of a limit shows the counter of that limit.
#[test]
fn a_client_that_is_denied_gets_no_all_clear() {
    let server = server(
        "limits: [{name: writes, by: [ip], when: {method: POST}, rate: 2/h}, {name: all, by: [ip], rate: 100/h}]",
    );
    let visitor = Visitor::logged_in(&server, TOKEN);
    let about = |question: &str| {
        let path = format!("/console/subject?{question}");
        let headers = format!("Cookie: {}\r\nAccept: application/json\r\n", visitor.cookie);
        sent(&server, "GET", &path, &headers, "").json()
    };
    let row = "attributes=%7B%22ip%22%3A%22192.0.2.1%22%7D&limit=writes";
    let fresh = about(row);
    assert_eq!(fresh["sentence"], "No, such a request passes now: limit writes has 2 of 2 left.");
    assert_eq!(fresh["tone"], "good");
    for _ in 0..4 {
        server.check(r#"{"attributes":{"ip":"192.0.2.1","method":"POST"}}"#);
    }
    let opened = about(row);
    let sentence = opened["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("Yes, limit writes denies it: 0 of 2 left; it passes again at"), "{opened}");
    assert_eq!(opened["tone"], "bad");
    let more = opened["more"].to_string();
    assert!(more.contains("incomplete: whether writes applies depends on method"), "{more}");
    assert!(more.contains("limit writes: 0 of 2 left") && more.contains("last denied at 20"), "{more}");
    assert!(more.contains(", 2 denials since 20"), "{more}");
    let asked = visitor.act("verb=explain&key=ip%3D192.0.2.1").json();
    let sentence = asked["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("That depends on method: where it applies, limit writes denies it"),
        "{asked}"
    );
    assert_eq!(asked["tone"], "bad");
    // Another client is in doubt, and so is a name that no limit uses.
    let other = visitor.act("verb=explain&key=ip%3D192.0.2.2").json();
    assert!(
        other["sentence"].as_str().unwrap().starts_with("Perhaps not: with these attributes alone"),
        "{other}"
    );
    let unknown = visitor.act("verb=explain&key=adress%3D192.0.2.2").json();
    assert_eq!((&unknown["tone"], &other["tone"]), (&"warn".into(), &"warn".into()));
    assert!(unknown["sentence"].as_str().unwrap().contains("no limit uses adress"), "{unknown}");
    // The tail of refusals begins with those that are over.
    let mut stream = server.connect();
    let head = format!(
        "GET /console/tail?denied=true HTTP/1.1\r\nHost: localhost\r\nCookie: {}\r\n\r\n",
        visitor.cookie
    );
    stream.write_all(head.as_bytes()).unwrap();
    let lines = BufReader::new(&stream).lines().map(Result::unwrap);
    let past: Vec<String> = lines.filter(|line| line.starts_with('{')).take(3).collect();
    assert!(past[..2].iter().all(|line| line.contains(r#""limit":"writes""#)), "{past:?}");
    assert_eq!(past[2], r#"{"forgotten_until":null,"past":2}"#);
}

/// The units that open reservations hold of a limit are shown beside their number.
#[test]
fn reserved_units_are_shown() {
    let server = server(POLICY);
    let body = r#"{"attributes":{"api_key":"k"},"cost":4,"ttl_ms":600000}"#;
    assert_eq!(server.send("POST", "/v1/reservations", body).status, 200);
    let page = Visitor::logged_in(&server, TOKEN).page();
    let units = "units reserved of limit per-key</td><td class=\"count\" data-column=\"open\">4<";
    assert!(page.contains(units), "{page}");
}

/// The overview arrives as events, the same for each viewer, and ends with the session.
#[test]
fn the_overview_is_live() {
    let (_scratch, server) = with_roles();
    let visitors =
        ["viewer", "admin"].map(|role| Visitor::logged_in(&server, &format!("{role}-token-0123456789")));
    let streams = visitors.each_ref().map(|visitor| {
        let mut stream = server.connect();
        let head =
            format!("GET /console/events HTTP/1.1\r\nHost: localhost\r\nCookie: {}\r\n\r\n", visitor.cookie);
        stream.write_all(head.as_bytes()).unwrap();
        stream
    });
    for _ in 0..8 {
        server.check(r#"{"attributes":{"api_key":"k"}}"#);
    }
    let [mut viewer, mut admin] = streams.each_ref().map(|stream| BufReader::new(stream).lines());
    let events = |lines: &mut std::io::Lines<BufReader<&std::net::TcpStream>>, wanted: &str| {
        lines
            .map(Result::unwrap)
            .find(|line| line.starts_with("data: ") && line.contains(wanted))
            .expect("an event")
    };
    let denied = r#"{"text":"3","tone":"count"}"#;
    let seen = events(&mut viewer, denied);
    assert!(seen.contains(r#""id":"limits""#) && !seen.contains(r#""id":"audit""#), "{seen}");
    assert!(events(&mut admin, r#""id":"audit""#).contains("Who did what"));
    let history = visitors[0].get("/console/history").json();
    let sum = |name: &str| {
        history["seconds"][name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum("allow"), sum("deny")), (5, 3), "{history}");
    assert_eq!(visitors[0].get("/console/history?limit=nothing").status, 404);
    let logout = format!("form_token={}", visitors[0].form_token);
    assert_eq!(visitors[0].post_with("/console/logout", "", &logout).status, 303);
    assert_eq!(viewer.map(Result::unwrap).find(|line| line == "0").as_deref(), Some("0"), "the stream ends");
}

/// The number of viewers is bounded, and one that leaves makes room.
#[test]
fn viewers_are_bounded() {
    let server = server(POLICY);
    let visitor = Visitor::logged_in(&server, TOKEN);
    let head =
        format!("GET /console/events HTTP/1.1\r\nHost: localhost\r\nCookie: {}\r\n\r\n", visitor.cookie);
    let mut open = Vec::new();
    let status = |stream: &std::net::TcpStream| {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    };
    for _ in 0..64 {
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(status(&stream), "200");
        open.push(stream);
    }
    assert_eq!(visitor.get("/console/events").status, 503);
    open.truncate(32);
    until("a viewer that left makes room", || {
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        (status(&stream) == "200").then_some(())
    });
}

/// A change of the policy shows what changed, and limits in shadow stand beside those that deny.
#[test]
fn changes_and_shadows_are_shown() {
    let scratch = Scratch::new();
    let policy =
        |rate: &str| format!("limits: [{{name: per-key, by: [api_key], rate: {rate}, mode: shadow}}]");
    let file = scratch.file("policy.yaml", &policy("5/h"));
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let visitor = Visitor::logged_in(&server, TOKEN);
    for _ in 0..7 {
        assert_eq!(server.check(r#"{"attributes":{"api_key":"k"}}"#)["allowed"], true);
    }
    scratch.replace("policy.yaml", &policy("6/h"));
    server.await_reloads((1, 0));
    let page = until("the change is shown", || {
        let page = visitor.page();
        (page.contains("changed per-key") && page.contains("data-column=\"would deny\">2<")).then_some(page)
    });
    assert!(page.contains("6 requests an hour") && page.contains("before: per-key"), "{page}");
}

/// The guide's commands are run, and what it shows is compared.
#[test]
fn the_guide_is_true() {
    let blocks = guide::blocks(include_str!("../../../../docs/console.md"));
    let scratch = Scratch::new();
    let file = scratch.file("policy.yaml", guide::first(&blocks, "yaml"));
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &file]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    Visitor::logged_in(&server, TOKEN).page();
    guide::follow_blocks(&blocks, &server, ("-eu", 3), |shell| {
        shell
            .current_dir(scratch.folder())
            .env("TOLLGATE_SERVER", format!("http://{}", server.address))
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    });
}
