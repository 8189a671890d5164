//! Real frameworks behind the gateway. Each has one handler, and is asked for it in many spellings: whenever the handler is reached, the
//! limit of the method that the handler saw was charged, with the same counter as for the plain spelling.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use tollgate_tower::spelling::{FIELDS, Treatment};

use crate::gateway_upstream::Gateway;
use crate::proxy::{Folder, Proxy, file, free_port};
use crate::raw_http::Response;

/// An address that no client has: where it is seen behind the gateway, a client's word about itself was believed.
const FORGED: &str = "192.0.2.66";

const POLICY: &str = "limits:
  - {name: login, when: {method: POST, path: /login}, by: [ip], rate: 1000/month}
  - {name: logout, when: {method: DELETE, path: /login}, by: [ip], rate: 1000/month}
  - {name: version, by: [version], rate: 1000/month}
";

/// Spellings of `/login`.
const PATHS: &str = "/login /LOGIN /login/ //login /login// /./login /x/../login /%6cogin /login.json /login.JSON /login%2ejson /login. \
    /login.. /login.a.b /login/.json /login.json/ /login;x /login;x.json /login.json;x /login%20 /login%20.json /login%3Bx /login%2f \
    /login%5c /login%00 /login%0a /login/. /login/x/.. /login? /login#y /login%23 /login%3f /index.php/login /%2flogin //app.test/login \
    http://app.test/login HTTP://app.test/login https://app.test/login ftp://app.test/login foo://app.test/login /login%252ejson \
    /login.format /login.%20 /login.%2e ///login /.login /;x/login /login+ /login:80 /login~ /login*";

/// Spellings of `v=1`.
const QUERIES: &str = "v=1 v=1&v=2 v[]=1 v[0]=1 v[x]=1 v%5B%5D=1 ;v=1 a;v=1 v=1;v=2 a=1;v=1 a=1&;v=1 %76=1 +v=1 v+=1 V=1 v%00=1 v[=1 \
    v]=1 v=%31 v%=1 &v=1 v[][]=1 v[a][b]=1 v=1&v[]=2 v=1&v=1 []v=1 [v]=1 v[]1=1 v=1&a=2";

/// A framework, and the spellings that are known to reach its handler: a test that reaches nothing tests nothing.
struct Framework {
    name: &'static str,
    start: fn(&Folder, u16) -> Command,
    reached: &'static [&'static str],
}

const FRAMEWORKS: [Framework; 4] = [
    Framework {
        name: "flask",
        start: flask,
        reached: &["/login", "/login/", "/%6cogin", "v=1", "%76=1", "DELETE"],
    },
    Framework {
        name: "django",
        start: django,
        reached: &["/login", "/login.json", "/login%2ejson", "/login/.json", "v=1", "DELETE"],
    },
    Framework {
        name: "express",
        start: express,
        reached: &["/login", "/LOGIN", "/login/", "v=1", "v=%31", "DELETE"],
    },
    Framework {
        name: "rails",
        start: rails,
        reached: &["/login", "/login.json", "/login.format", "/login.json;x", "v=1", "DELETE"],
    },
];

fn app(name: &str) -> String {
    file("e2e/frameworks").join(name).display().to_string()
}

fn flask(_: &Folder, port: u16) -> Command {
    let mut command = Command::new(file(".cache/frameworks/bin/python"));
    command.arg(app("flask_app.py")).arg(port.to_string());
    command
}

fn django(folder: &Folder, port: u16) -> Command {
    let mut command = Command::new(file(".cache/frameworks/bin/gunicorn"));
    let (bind, path) = (format!("127.0.0.1:{port}"), app(""));
    command.args(["--bind", &bind, "--pythonpath", &path, "--no-control-socket", "django_app:application"]);
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&folder.0);
    command
}

fn express(_: &Folder, port: u16) -> Command {
    let mut command = Command::new("node");
    command.arg(app("express_app.js")).arg(file(".cache/node/node_modules/express")).arg(port.to_string());
    command
}

fn rails(folder: &Folder, port: u16) -> Command {
    let mut command = Command::new("puma");
    command.args(["--quiet", "--bind", &format!("tcp://127.0.0.1:{port}"), &app("rails.ru")]);
    command.env("RAILS_ENV", "production").current_dir(&folder.0);
    command
}

/// The remaining units of each limit.
type Left = BTreeMap<String, u64>;

/// The answer to one request.
struct Answer {
    response: Response,
    /// The handler's text, if it was reached.
    reported: Option<Value>,
}

impl Answer {
    /// The limit that was charged, and what is left of it.
    fn charged(&self) -> Option<(String, u64)> {
        let reported = self.response.header("ratelimit")?;
        let (name, rest) = reported.strip_prefix('"')?.split_once("\";r=")?;
        Some((name.to_owned(), rest.split(';').next()?.parse().ok()?))
    }

    fn method(&self) -> Option<&str> {
        self.reported.as_ref()?["method"].as_str()
    }
}

/// A gateway with a framework behind it.
struct Behind {
    name: &'static str,
    gateway: Gateway,
    reached: BTreeSet<String>,
    _framework: Proxy,
    _folder: Folder,
}

impl Behind {
    fn start(framework: &Framework) -> Self {
        let (folder, port) = (Folder::new(framework.name), free_port());
        let mut command = (framework.start)(&folder, port);
        command.stderr(Stdio::null());
        let started = Proxy::start(command, port);
        let config =
            folder.write("config.yaml", "{attributes: {version: {query: v}}, headers: {anonymous: full}}");
        let upstream = format!("http://127.0.0.1:{port}");
        let arguments = ["--upstream", &upstream, "--config", &config.display().to_string()];
        let gateway = Gateway::with(&arguments, POLICY);
        Self { name: framework.name, gateway, reached: BTreeSet::new(), _framework: started, _folder: folder }
    }

    fn ask(&self, method: &str, target: &str, fields: &str) -> Answer {
        let head =
            format!("{method} {target} HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n{fields}\r\n");
        let response = self.gateway.exchange(&head);
        let reported: Option<Value> = serde_json::from_slice(&response.body).ok();
        let reported = reported.filter(|reported| response.status == 200 && reported["handler"] == "login");
        Answer { response, reported }
    }

    /// Where the handler was reached, the limit of the method that it saw was charged; and whatever was charged has one counter: what is
    /// left of it is one less than before.
    fn assert_charged(&self, answer: &Answer, left: &mut Left, what: &str) {
        let charged = answer.charged();
        let limit = match answer.method() {
            Some("POST") => Some("login"),
            Some("DELETE") => Some("logout"),
            // Without a limit of its own.
            _ => None,
        };
        let about = || format!("{}: {what} reached the handler of {:?}", self.name, answer.method());
        assert!(
            limit.is_none() || charged.as_ref().map(|(name, _)| name.as_str()) == limit,
            "{}: {charged:?}",
            about()
        );
        if let Some((name, now)) = charged {
            let left = left.entry(name).or_insert(1_000);
            *left -= 1;
            assert_eq!(now, *left, "{}", about());
        }
    }

    fn paths_and_methods(&mut self, left: &mut Left) {
        for path in PATHS.split_whitespace() {
            let answer = self.ask("POST", path, "");
            self.assert_charged(&answer, left, path);
            if answer.reported.is_some() {
                self.reached.insert(path.to_owned());
            }
        }
        for method in ["post", "Post", "pOST", "delete", "PATCH", "M-SEARCH", "DELETE"] {
            let answer = self.ask(method, "/login", "");
            let is_small = method.bytes().any(|byte| byte.is_ascii_lowercase());
            assert_eq!(answer.response.status == 400, is_small, "{}: {method}", self.name);
            self.assert_charged(&answer, left, method);
            self.reached.extend(answer.method().map(str::to_owned));
        }
        for spelling in spellings("x-http-method-override").iter().chain(&spellings("x-http-method")) {
            let answer = self.ask("POST", "/login", &format!("{spelling}: DELETE\r\n"));
            assert_eq!(
                answer.method(),
                Some("POST"),
                "{}: {spelling}, {}",
                self.name,
                answer.response.status
            );
            self.assert_charged(&answer, left, spelling);
        }
        let answer = self.ask("POST", "/login?_method=DELETE", "");
        assert_eq!(answer.response.status, 400, "{}", self.name);
    }

    /// Where the handler reads the value, the counter of the value was charged.
    fn queries(&mut self) {
        let mut left = 1_000;
        for query in QUERIES.split_whitespace() {
            let answer = self.ask("GET", &format!("/login?{query}"), "");
            left -= u64::from(answer.charged().is_some());
            let Some(reported) = &answer.reported else { continue };
            if reported["v"].as_array().is_none_or(Vec::is_empty) {
                continue;
            }
            let read = format!("{}: {query} is read as {}", self.name, reported["v"]);
            assert_eq!(answer.charged(), Some(("version".to_owned(), left)), "{read}");
            self.reached.insert(query.to_owned());
        }
    }

    /// Nothing that a client says about its address, its host or its path gets there, in whatever spelling.
    fn forgeries(&mut self, left: &mut Left) {
        let forged = FIELDS
            .iter()
            .filter(|fields| matches!(fields.treatment, Treatment::TrustedOnly | Treatment::Drop));
        let names: Vec<String> =
            forged.flat_map(|fields| fields.names).map(|name| name.replace('*', "for")).collect();
        for spelling in 0..spellings("").len() {
            let lines: String =
                names.iter().map(|name| format!("{}: {FORGED}\r\n", spellings(name)[spelling])).collect();
            let answer = self.ask("POST", "/login", &lines);
            let body = String::from_utf8_lossy(&answer.response.body).into_owned();
            assert!(answer.reported.is_some() && !body.contains(FORGED), "{}: {body}", self.name);
            self.assert_charged(&answer, left, "a forged address");
        }
        for name in ["script-name", "x-script-name", "x-forwarded-prefix", "path-info"] {
            for spelling in spellings(name) {
                let answer = self.ask("POST", "/x/login", &format!("{spelling}: /x\r\n"));
                assert!(answer.reported.is_none(), "{}: {spelling} makes another path of it", self.name);
            }
        }
    }
}

/// A name of a field as servers may read it, in each mix of signs that matters.
fn spellings(name: &str) -> [String; 4] {
    [name.to_owned(), name.replace('-', "_"), name.replacen('-', "_", 1), name.replace('-', ".")]
}

/// Whatever the spelling: the same handler, the same counter.
#[test]
fn the_same_handler_is_the_same_counter() {
    thread::scope(|scope| {
        for framework in &FRAMEWORKS {
            scope.spawn(move || {
                let mut behind = Behind::start(framework);
                let mut left = Left::new();
                behind.paths_and_methods(&mut left);
                behind.queries();
                behind.forgeries(&mut left);
                for known in framework.reached {
                    let reached = &behind.reached;
                    assert!(reached.contains(*known), "{}: {known} is not among {reached:?}", framework.name);
                }
            });
        }
    });
}
