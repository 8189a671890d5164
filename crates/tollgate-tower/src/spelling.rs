//! Parts of a request's head that two servers could read differently, and how a gateway treats them: one table of
//! header fields ([`FIELDS`]) and one of everything else ([`RULES`]), each row with its reason. The gateway works from
//! these tables, its guide shows them, and a test walks every row.

pub(crate) mod parameter;

use std::borrow::Cow;
use std::sync::LazyLock;

use http::header::{EXPECT, VIA};
use http::request::Parts;
use http::{Method, Uri};

/// The treatment of a header field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Dropped in both directions: it belongs to one connection.
    Hop,
    /// Dropped from every sender.
    Drop,
    /// Dropped, except from a trusted proxy.
    TrustedOnly,
    /// Dropped, except where the config keeps method overrides.
    MethodOverride,
    /// Forwarded. `Connection` cannot list it for removal.
    Keep,
}

/// Header fields that are treated alike, for one reason.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Their names in lowercase. A star at the end matches the rest of a name.
    pub names: &'static [&'static str],
    /// The treatment of the fields. Any other spelling of the same name, such as one with `_`, is dropped.
    pub treatment: Treatment,
    /// The reason for it.
    pub reason: &'static str,
}

/// The header fields that are treated specially; all others are forwarded if their names are plain ([`is_plain`]).
pub const FIELDS: &[Fields] = &[
    Fields {
        names: &[
            "client-ip",
            "x-client-ip",
            "cluster-client-ip",
            "x-cluster-client-ip",
            "true-client-ip",
            "x-real-ip",
            "forwarded",
            "forwarded-for",
            "forwarded-for-ip",
            "x-forwarded",
            "x-forwarded-*",
            "x-forward-for",
            "x-forwarder-for",
            "http-client-ip",
            "http-forwarded",
            "http-forwarded-for",
            "http-x-forwarded",
            "http-x-forwarded-for",
            "proxy-client-ip",
            "wl-proxy-client-ip",
            "x-proxyuser-ip",
            "remote-addr",
            "x-remote-addr",
            "x-remote-ip",
            "x-originating-ip",
            "cf-connecting-ip",
            "cf-connecting-ipv6",
            "cf-pseudo-ipv4",
            "fastly-client-ip",
            "fly-client-ip",
            "do-connecting-ip",
            "incap-client-ip",
            "x-sucuri-clientip",
            "x-appengine-user-ip",
            "x-appengine-remote-addr",
            "x-azure-clientip",
            "x-azure-socketip",
            "x-envoy-external-address",
            "x-nf-client-connection-ip",
            "x-vercel-forwarded-for",
            "x-original-forwarded-for",
            "x-original-remote-addr",
            "cloudfront-viewer-address",
            "cdn-src-ip",
            "ali-cdn-real-ip",
            "coming-from",
            "x-coming-from",
            "x-user-ip",
            "source-ip",
            "client-address",
            "eo-client-ip",
            "akamai-client-ip",
        ],
        treatment: Treatment::TrustedOnly,
        reason: "services and frameworks read the client's address from them",
    },
    Fields {
        names: &[
            "front-end-https",
            "https",
            "x-scheme",
            "x-url-scheme",
            "x-arr-ssl",
            "cf-visitor",
            "cloudfront-forwarded-proto",
        ],
        treatment: Treatment::TrustedOnly,
        reason: "frameworks read from them whether the client used TLS",
    },
    Fields {
        names: &[
            "x-original-url",
            "x-original-uri",
            "x-original-path",
            "x-original-host",
            "x-original-method",
            "x-rewrite-url",
            "x-override-url",
            "x-envoy-original-path",
            "x-envoy-original-host",
            "x-host",
            "x-http-host-override",
            "x-script-name",
            "script-name",
            "path-info",
        ],
        treatment: Treatment::TrustedOnly,
        reason: "frameworks and servers (gunicorn, IIS, Symfony) take another path, host or method from them than the one that limits saw",
    },
    Fields {
        names: &["x-http-method-override", "x-http-method", "x-method-override"],
        treatment: Treatment::MethodOverride,
        reason: "frameworks take another method from them than the one that limits saw",
    },
    Fields {
        names: &["proxy"],
        treatment: Treatment::Drop,
        reason: "CGI programs read it as `HTTP_PROXY`, and send their own requests there",
    },
    Fields {
        names: &[
            "connection",
            "proxy-connection",
            "keep-alive",
            "te",
            "transfer-encoding",
            "upgrade",
            "proxy-authorization",
            "proxy-authenticate",
            "http2-settings",
        ],
        treatment: Treatment::Hop,
        reason: "they belong to one connection, as do the fields that `Connection` names; the gateway writes its own",
    },
    Fields {
        names: &[
            "host",
            "authorization",
            "cookie",
            "content-length",
            "content-type",
            "date",
            "via",
            "x-api-key",
        ],
        treatment: Treatment::Keep,
        reason: "they say who asks and for what; `Connection` cannot name them away",
    },
];

/// The treatment of all other fields whose names are not plain: what they are, what happens, and why.
pub const NOT_PLAIN: [&str; 3] = [
    "a field whose name has anything but letters, digits and `-`: `X_Forwarded-For`, `my_field`",
    "dropped, unless the config maps it; `header_names: any` sends it on, if it is no other spelling of a field above or of one that the config maps",
    "CGI, WSGI, Rack and PHP read `_` and `-` as one, and some read every other sign so",
];

/// Every name of [`FIELDS`] that has no star, in order.
static NAMES: LazyLock<Vec<(&'static str, Treatment)>> = LazyLock::new(|| {
    let all = FIELDS.iter().flat_map(|fields| fields.names.iter().map(|name| (*name, fields.treatment)));
    let mut names: Vec<_> = all.filter(|(name, _)| !name.ends_with('*')).collect();
    names.sort_unstable_by_key(|(name, _)| *name);
    names
});

/// The prefixes of names of [`FIELDS`] that have a star.
static FAMILIES: LazyLock<Vec<(&'static str, Treatment)>> = LazyLock::new(|| {
    let all = FIELDS.iter().flat_map(|fields| fields.names.iter().map(|name| (*name, fields.treatment)));
    all.filter_map(|(name, treatment)| Some((name.strip_suffix('*')?, treatment))).collect()
});

/// The treatment of a field of this name, in lowercase; `None` if it is not in the table.
#[must_use]
pub fn treatment(name: &str) -> Option<Treatment> {
    let found = NAMES.binary_search_by_key(&name, |(known, _)| known).ok();
    let exact = found.and_then(|place| NAMES.get(place));
    let family = || FAMILIES.iter().find(|(beginning, _)| name.starts_with(beginning));
    exact.or_else(family).map(|(_, treatment)| *treatment)
}

/// Whether the name of a field has only letters, digits and `-`, which every server reads alike.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The plain name that servers may read instead of this one: CGI, WSGI and Rack read `_` as `-`, and some read every
/// other sign so.
#[must_use]
pub fn plain(name: &str) -> Cow<'_, str> {
    if is_plain(name) {
        return Cow::Borrowed(name);
    }
    let letter =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    Cow::Owned(name.chars().map(letter).collect())
}

/// The treatment of fields and parameters by which a request asks for another method than its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MethodOverride {
    /// A gateway drops the fields, and rejects the parameters. A service that decides about a request which another
    /// program holds can only reject both.
    #[default]
    Drop,
    /// They are forwarded.
    Keep,
}

/// A setting of the config that admits what is rejected by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unless {
    /// `method_override: keep`.
    MethodOverrideKept,
}

/// The outcome for a request that a [`Rule`] matches.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// It is answered with this status.
    Refused(u16),
    /// It is forwarded with this request line, for this host.
    SentOn {
        /// The method and the target.
        line: &'static str,
        /// The `Host`.
        host: &'static str,
    },
}

/// A request that a [`Rule`] matches.
#[derive(Clone, Copy, Debug)]
pub struct ExampleRequest {
    /// Its method.
    pub method: &'static str,
    /// Its target.
    pub target: &'static str,
    /// Its `Host`.
    pub host: &'static str,
    /// Its other fields.
    pub fields: &'static [(&'static str, &'static str)],
}

impl ExampleRequest {
    const fn get(target: &'static str) -> Self {
        Self { method: "GET", target, host: "app.test", fields: &[] }
    }

    const fn with(
        method: &'static str,
        target: &'static str,
        fields: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { method, target, host: "app.test", fields }
    }

    const fn at(host: &'static str) -> Self {
        Self { method: "GET", target: "/login", host, fields: &[] }
    }
}

/// Which versions of HTTP can write a spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// HTTP/1 and HTTP/2.
    All,
    /// HTTP/1 alone: HTTP/2 has no such thing, or ends the connection because of it.
    Http1,
}

/// How a rule is matched against a request.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// By this test of the head. The text is sent to a client that is rejected.
    Head(fn(&Parts) -> bool, &'static str),
    /// By the code that reads the host and the path ([`crate::attributes`]), which gives the reason.
    Reading,
}

/// One thing that servers read differently, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The field or parameter.
    pub what: &'static str,
    /// Its treatment.
    pub outcome: Outcome,
    /// Why.
    pub reason: &'static str,
    /// The setting that turns it off.
    pub unless: Option<Unless>,
    /// How it is matched.
    pub check: Check,
    /// The versions of HTTP that can write it.
    pub versions: Versions,
    /// Requests that it matches.
    pub examples: &'static [ExampleRequest],
}

const LOGIN: Outcome = Outcome::SentOn { line: "GET /login", host: "app.test" };

/// The name of this program in `Via`.
pub const PSEUDONYM: &str = "tollgate";

/// The parameter in which frameworks look for another method.
pub(crate) const METHOD_PARAMETER: &str = "_method";

/// The message to clients whose method is not a token in capitals.
pub(crate) const METHOD_ACCEPTED: &str =
    "method: it has small letters, or is no method; accepted: capitals, such as POST";

/// Everything but header fields. What is not rejected is forwarded in one spelling, which is the one that limits are
/// matched with.
pub const RULES: &[Rule] = &[
    Rule {
        what: "a method with small letters: `post`, `Post`",
        outcome: Outcome::Refused(400),
        reason: "services upper-case it, and a limit on `POST` would not hold for it",
        unless: None,
        check: Check::Head(has_small_letters, METHOD_ACCEPTED),
        versions: Versions::All,
        examples: &[
            ExampleRequest::with("post", "/login", &[]),
            ExampleRequest::with("Post", "/login", &[]),
            ExampleRequest::with("gET", "/", &[]),
        ],
    },
    Rule {
        what: "a target of another scheme: `ftp://app.test/login`",
        outcome: Outcome::Refused(400),
        reason: "services take the path out of it, whatever the scheme",
        unless: None,
        check: Check::Head(
            is_of_another_scheme,
            "the target has another scheme; accepted: a path, or http:// and https://",
        ),
        versions: Versions::All,
        examples: &[
            ExampleRequest::get("ftp://app.test/login"),
            ExampleRequest::get("foo://app.test/login"),
            ExampleRequest::get("file://app.test/x"),
        ],
    },
    Rule {
        what: "an absolute target: `http://app.test/login`",
        outcome: LOGIN,
        reason: "its host and the `Host` must be the same; a service is sent a path",
        unless: None,
        check: Check::Reading,
        versions: Versions::Http1,
        examples: &[
            ExampleRequest::get("http://app.test/login"),
            ExampleRequest::get("https://APP.test:443//login"),
            ExampleRequest::get("HTTP://app.test/login"),
        ],
    },
    Rule {
        what: "an absolute target for another host than `Host`, or with a user's name",
        outcome: Outcome::Refused(400),
        reason: "some servers believe the target, and some the field",
        unless: None,
        check: Check::Reading,
        versions: Versions::Http1,
        examples: &[
            ExampleRequest::get("http://other.test/login"),
            ExampleRequest::get("http://user@app.test/login"),
            ExampleRequest::get("http://app.test:8443/login"),
        ],
    },
    Rule {
        what: "`Expect` twice, or with anything but `100-continue`",
        outcome: Outcome::Refused(417),
        reason: "a server that reads the other one waits for a body that does not come",
        unless: None,
        check: Check::Head(expects_wrongly, "expect: accepted: 100-continue, once"),
        versions: Versions::All,
        examples: &[
            ExampleRequest::with("POST", "/login", &[("expect", "100-continue"), ("expect", "100-continue")]),
            ExampleRequest::with("POST", "/login", &[("expect", "100-continue"), ("expect", "miracles")]),
            ExampleRequest::with("POST", "/login", &[("expect", "miracles")]),
            ExampleRequest::with("POST", "/login", &[("expect", "100-continue, x")]),
        ],
    },
    Rule {
        what: "`_method` in the query of a `POST`",
        outcome: Outcome::Refused(400),
        reason: "frameworks take another method from it than the one that limits saw",
        unless: Some(Unless::MethodOverrideKept),
        check: Check::Head(
            has_method_parameter,
            "query parameter _method: it asks for another method; accepted: the method itself, or `method_override: keep` in the config",
        ),
        versions: Versions::All,
        examples: &[
            ExampleRequest::with("POST", "/login?_method=DELETE", &[]),
            ExampleRequest::with("POST", "/login?a=1;%5Fmethod=put", &[]),
            ExampleRequest::with("POST", "/login?a&_method[]=put", &[]),
        ],
    },
    Rule {
        what: "a parameter of the query that limits look at, twice or in another spelling than `v=1`: `v[]=1`, `;v=1` (in the path as well), `V=1`, `v%00=1`; or more than 500 parameters beside it",
        outcome: Outcome::Refused(400),
        reason: "frameworks read it, others do not, and some read the first of two",
        unless: None,
        check: Check::Reading,
        versions: Versions::All,
        examples: &[
            ExampleRequest::get("/login?v=1&v=2"),
            ExampleRequest::get("/login?v[]=1"),
            ExampleRequest::get("/login?v%5B0%5D=1"),
            ExampleRequest::get("/login?a=1;v=1"),
            ExampleRequest::get("/login;v=1"),
            ExampleRequest::get("/login;a=1&v=1?v=2"),
            ExampleRequest::get("/login?v=1;x=2"),
            ExampleRequest::get("/login?V=1"),
            ExampleRequest::get("/login?[v]=1"),
            ExampleRequest::get("/login?v%00=1"),
            ExampleRequest::get("/login?%u0076=1"),
        ],
    },
    Rule {
        what: "`Via` with the name of this program five times, inside of comments or not",
        outcome: Outcome::Refused(508),
        reason: "it goes round in circles; a comment that a client leaves open would hide it",
        unless: None,
        check: Check::Head(is_looping, "via: it has passed a gateway 5 times; look where the upstreams lead"),
        versions: Versions::All,
        examples: &[
            ExampleRequest::with(
                "GET",
                "/",
                &[("via", "1.1 tollgate, 1.1 tollgate, 1.1 tollgate, 1.1 tollgate, 1.1 tollgate")],
            ),
            ExampleRequest::with(
                "GET",
                "/",
                &[("via", "1.1 x ("), ("via", "tollgate tollgate tollgate,tollgate (TOLLGATE)")],
            ),
        ],
    },
    Rule {
        what: "a path with escaped letters, dot segments or repeated slashes; a fragment",
        outcome: LOGIN,
        reason: "servers undo them, some before and some after they look for a handler",
        unless: None,
        check: Check::Reading,
        versions: Versions::All,
        examples: &[
            ExampleRequest::get("/%6cogin"),
            ExampleRequest::get("//login"),
            ExampleRequest::get("/./login"),
            ExampleRequest::get("/x/../login"),
            ExampleRequest::get("/x/%2e%2E/login"),
            ExampleRequest::get("/../login"),
            ExampleRequest::get("/login#x"),
        ],
    },
    Rule {
        what: "a path with an escaped slash, a backslash, a control character, `..;`, a broken escape or bytes that are not UTF-8",
        outcome: Outcome::Refused(400),
        reason: "servers disagree about what it is (`escaped_slashes` in the config accepts the first two)",
        unless: None,
        check: Check::Reading,
        versions: Versions::All,
        examples: &[
            ExampleRequest::get("/a%2flogin"),
            ExampleRequest::get("/a%5clogin"),
            ExampleRequest::get("/login%00"),
            ExampleRequest::get("/login%0a"),
            ExampleRequest::get("/x/..;/login"),
            ExampleRequest::get("/login%"),
            ExampleRequest::get("/login%u0061"),
            ExampleRequest::get("/login%c0%ae"),
        ],
    },
    Rule {
        what: "a host in capitals, with a dot at its end, or with a port that goes without saying",
        outcome: LOGIN,
        reason: "it is the same host",
        unless: None,
        check: Check::Reading,
        versions: Versions::All,
        examples: &[
            ExampleRequest::at("APP.Test"),
            ExampleRequest::at("app.test."),
            ExampleRequest::at("app.test:80"),
            ExampleRequest::at("App.test.:443"),
        ],
    },
    Rule {
        what: "no `Host`, an empty one, one that is neither a name nor an address with a port, or two of them",
        outcome: Outcome::Refused(400),
        reason: "one would be counted, and another one served",
        unless: None,
        check: Check::Reading,
        versions: Versions::Http1,
        examples: &[
            ExampleRequest::at(""),
            ExampleRequest::at("user@app.test"),
            ExampleRequest::at("app.test,other.test"),
            ExampleRequest::at("app..test"),
            ExampleRequest::at("app.test:0"),
            ExampleRequest::with("GET", "/login", &[("host", "app.test")]),
        ],
    },
];

/// The first rule that rejects a request by its head alone, before any other part is read; settings may let it pass.
#[must_use]
pub fn refused(
    request: &Parts,
    is_let: impl Fn(Unless) -> bool,
) -> Option<(&'static Rule, u16, &'static str)> {
    RULES.iter().find_map(|rule| match (rule.check, rule.outcome) {
        (Check::Head(is_it, reason), Outcome::Refused(status)) if is_it(request) => {
            (!rule.unless.is_some_and(&is_let)).then_some((rule, status, reason))
        }
        _ => None,
    })
}

/// Whether this is a method as servers accept them: a token without lowercase letters.
pub(crate) fn is_method(text: &str) -> bool {
    let is_sign = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || is_sign(byte))
}

fn has_small_letters(request: &Parts) -> bool {
    !is_method(request.method.as_str())
}

fn is_of_another_scheme(request: &Parts) -> bool {
    let is_known = |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    Uri::scheme_str(&request.uri).is_some_and(|scheme| !is_known(scheme))
}

fn expects_wrongly(request: &Parts) -> bool {
    let mut lines = request.headers.get_all(EXPECT).iter();
    let Some(first) = lines.next() else { return false };
    lines.next().is_some() || !first.as_bytes().eq_ignore_ascii_case(b"100-continue")
}

/// How often a request may pass a Tollgate before it is taken for a loop.
const HOPS_MAX: usize = 5;

fn is_looping(request: &Parts) -> bool {
    let is_sign = |byte: &u8| !byte.is_ascii_alphanumeric();
    let words = request.headers.get_all(VIA).iter().flat_map(|line| line.as_bytes().split(is_sign));
    words.filter(|word| word.eq_ignore_ascii_case(PSEUDONYM.as_bytes())).count() >= HOPS_MAX
}

fn has_method_parameter(request: &Parts) -> bool {
    let query = request.uri.query().unwrap_or_default();
    request.method == Method::POST && parameter::is_named(query, METHOD_PARAMETER)
}

#[cfg(test)]
mod tests;
