//! Routes as the config writes them, and their compiled form. Compiling is pure and reports all problems at once, each
//! with its field and what would be accepted.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tollgate_tower::attributes;
use tollgate_tower::attributes::template::Template;

use crate::graphql::{self, GraphqlDocument, GraphqlPlan};
use crate::listen::Pace;
use crate::paths::{OneOrMore, Paths};
use crate::target::Target;
use crate::time_text;

/// Maximum routes, maximum upstreams of one route, and the largest weight.
const ROUTES_MAX: usize = 1_000;
const UPSTREAMS_MAX: usize = 64;
const WEIGHT_MAX: u32 = 100;
/// Largest accepted bound on the requests in flight at one upstream, and the default.
pub(crate) const CONNECTIONS_MAX: usize = 10_000;
pub(crate) const CONNECTIONS: usize = 512;
/// Largest accepted bound on the tunnels at one upstream, and the default.
const TUNNELS_MAX: usize = 100_000;
const TUNNELS: usize = 512;
/// The minimum rate of a body: this many bytes over this time, on average; and the fraction of that time which a client
/// has at first.
const PACE_BYTES: u32 = 30_000;
const PACE_BYTES_MAX: u32 = 100_000_000;
const PACE_OVER: Duration = Duration::from_secs(60);
const PACE_FIRST: u32 = 3;
/// A client's default share of an upstream's requests and tunnels, in per cent.
const PER_CLIENT: u32 = 25;
const RETRIES_MAX: u32 = 3;
/// Longest name of a route.
const NAME_BYTES_MAX: usize = 64;
/// The route's name for `--upstream`.
const FLAG_ROUTE: &str = "upstream";

/// One route, as the config writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteDocument {
    name: Option<String>,
    host: Option<String>,
    path: Option<String>,
    #[serde(default)]
    upstreams: Vec<UpstreamDocument>,
    #[serde(default)]
    protocol: UpstreamProtocol,
    #[serde(default)]
    timeouts: TimeoutsDocument,
    health: Option<HealthDocument>,
    retries: Option<u32>,
    sticky: Option<OneOrMore>,
    connections: Option<usize>,
    tunnels: Option<usize>,
    per_client: Option<String>,
    #[serde(default)]
    pace: PaceDocument,
    ca: Option<PathBuf>,
    #[serde(default, deserialize_with = "graphql::present")]
    graphql: Option<GraphqlDocument>,
}

/// An upstream: its URL, or a table with it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamTable {
    url: String,
    weight: Option<u32>,
}

/// One item of `upstreams`. Not an untagged enum, so that a wrong field of the table is named.
#[derive(Debug)]
struct UpstreamDocument(UpstreamTable);

impl<'d> Deserialize<'d> for UpstreamDocument {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UrlOrTable).map(Self)
    }
}

struct UrlOrTable;

impl<'d> Visitor<'d> for UrlOrTable {
    type Value = UpstreamTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL such as http://127.0.0.1:3000, or a table with url and weight")
    }

    fn visit_str<E>(self, url: &str) -> Result<UpstreamTable, E> {
        Ok(UpstreamTable { url: url.to_owned(), weight: None })
    }

    fn visit_map<A: MapAccess<'d>>(self, map: A) -> Result<UpstreamTable, A::Error> {
        UpstreamTable::deserialize(MapAccessDeserializer::new(map))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimeoutsDocument {
    connect: Option<String>,
    response: Option<String>,
    idle: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaceDocument {
    bytes: Option<u32>,
    over: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthDocument {
    path: Option<String>,
    interval: Option<String>,
    timeout: Option<String>,
    healthy: Option<u32>,
    unhealthy: Option<u32>,
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UpstreamProtocol {
    /// HTTP/1.1, or the protocol that TLS agrees on.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, by prior knowledge if there is no TLS.
    H2,
}

/// Which hosts a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Any,
    /// Every name below this one, that is, with this suffix after a dot.
    Below(String),
    Exactly(String),
}

/// Timeouts for the parts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Until there is a connection, including TLS and the wait for a slot.
    pub(crate) connect: Duration,
    /// Until the answer begins, counted from the last byte that was sent.
    pub(crate) response: Duration,
    /// Until the next part of the answer.
    pub(crate) idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(5), response: seconds(60), idle: seconds(300) }
    }
}

/// How upstreams are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthPlan {
    pub(crate) path: String,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    /// Checks in a row that make an upstream healthy, and unhealthy.
    pub(crate) thresholds: (u32, u32),
}

/// One upstream of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamPlan {
    pub(crate) target: Target,
    pub(crate) weight: u32,
}

/// One compiled route. It is valid, except for the files that it names, which are read later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePlan {
    pub(crate) name: String,
    pub(crate) host: Host,
    pub(crate) paths: Paths,
    pub(crate) upstreams: Vec<UpstreamPlan>,
    pub(crate) protocol: UpstreamProtocol,
    pub(crate) timeouts: Timeouts,
    pub(crate) health: Option<HealthPlan>,
    pub(crate) retries: u32,
    /// The first of these attributes that a request has chooses its upstream.
    pub(crate) sticky: Vec<String>,
    /// Maximum requests in flight, and maximum tunnels, at one upstream.
    pub(crate) connections: usize,
    pub(crate) tunnels: usize,
    /// The share of both that one client may use, in per cent.
    pub(crate) per_client: u32,
    /// The minimum rate of a request's body.
    pub(crate) pace: Pace,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) graphql: Option<GraphqlPlan>,
}

impl RoutePlan {
    /// The route of `--upstream`: it matches every request.
    #[must_use]
    pub fn of_flag(target: &Target) -> Self {
        Self {
            name: FLAG_ROUTE.to_owned(),
            host: Host::Any,
            paths: Paths::Below(String::new()),
            upstreams: vec![UpstreamPlan { target: target.clone(), weight: 1 }],
            protocol: UpstreamProtocol::Auto,
            timeouts: Timeouts::default(),
            health: None,
            retries: 1,
            sticky: Vec::new(),
            connections: CONNECTIONS,
            tunnels: TUNNELS,
            per_client: PER_CLIENT,
            pace: pace(&PaceDocument::default(), &mut Vec::new()),
            ca: None,
            graphql: None,
        }
    }

    /// How specific the route is. The most specific route that matches is used.
    pub(crate) fn rank(&self) -> (usize, usize, usize) {
        let host = match &self.host {
            Host::Any => 0,
            Host::Below(suffix) => suffix.len(),
            // A host with a port is more specific than one without.
            Host::Exactly(name) => usize::MAX - usize::from(!has_port(name)),
        };
        match &self.paths {
            Paths::Below(path) => (host, path.split('/').count(), 0),
            // Of two paths of the same length, a template is more specific, because it fixes where the path ends; the
            // more literal segments it has, the more specific it is.
            Paths::Template(template) => {
                let segments = template.text().split('/');
                let literal = segments.clone().filter(|segment| !segment.starts_with('{')).count();
                (host, segments.count(), 1 + literal)
            }
        }
    }
}

/// Compiles the routes of a config. `attributes` are those that the config reads from requests.
pub fn compile(
    documents: Vec<RouteDocument>,
    attributes: &[&str],
    problems: &mut Vec<String>,
) -> Vec<RoutePlan> {
    if documents.len() > ROUTES_MAX {
        problems.push(format!("routes: more than {ROUTES_MAX}; accepted: as many"));
    }
    let mut plans: Vec<RoutePlan> = Vec::new();
    for (index, document) in documents.into_iter().take(ROUTES_MAX).enumerate() {
        let mut found = Vec::new();
        let plan = route(document, index, &mut found);
        for unknown in plan.sticky.iter().filter(|name| !attributes.contains(&name.as_str())) {
            let accepted = attributes.join(", ");
            found.push(format!("sticky: {unknown:?} is not read from requests; accepted: {accepted}, and what `attributes` in the config maps"));
        }
        let (mut twins, mut same) = (plans.iter(), plans.iter());
        if twins.any(|other| other.host == plan.host && other.paths == plan.paths) {
            found.push("host and path: those of another route; accepted: each pair once".to_owned());
        }
        if plan.name == FLAG_ROUTE || same.any(|other| other.name == plan.name) {
            found.push(format!("name: {:?} is another route's; accepted: each name once", plan.name));
        }
        problems.extend(found.into_iter().map(|problem| format!("routes[{index}].{problem}")));
        plans.push(plan);
    }
    plans
}

fn route(document: RouteDocument, index: usize, problems: &mut Vec<String>) -> RoutePlan {
    let name = document.name.unwrap_or_else(|| format!("route-{index}"));
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        problems.push(format!("name: accepted: 1 to {NAME_BYTES_MAX} bytes without control characters"));
    }
    let host = host(document.host.as_deref(), problems);
    let paths = paths(document.path.as_deref(), problems);
    let upstreams = upstreams(document.upstreams, problems);
    if document.protocol == UpstreamProtocol::Http1 && upstreams.iter().any(|upstream| upstream.target.is_h2)
    {
        problems.push("protocol: http1 with h2c://; accepted: one of the two".to_owned());
    }
    let retries = document.retries.unwrap_or(1);
    if retries > RETRIES_MAX {
        problems.push(format!("retries: {retries} is not accepted; accepted: 0 to {RETRIES_MAX}"));
    }
    let mut count = |name: &str, given: Option<usize>, usual: usize, most: usize| {
        let count = given.unwrap_or(usual);
        if count == 0 || count > most {
            problems.push(format!("{name}: {count} is not accepted; accepted: 1 to {most}"));
        }
        count
    };
    let connections = count("connections", document.connections, CONNECTIONS, CONNECTIONS_MAX);
    let tunnels = count("tunnels", document.tunnels, TUNNELS, TUNNELS_MAX);
    let sticky = document.sticky.map(OneOrMore::list).unwrap_or_default();
    let graphql = document.graphql.map(|document| graphql::compile(document, &paths, problems));
    RoutePlan {
        name,
        host,
        paths,
        upstreams,
        protocol: document.protocol,
        timeouts: timeouts(&document.timeouts, problems),
        health: document.health.map(|health| health_plan(health, problems)),
        retries,
        sticky,
        connections,
        tunnels,
        per_client: per_client(document.per_client.as_deref(), problems),
        pace: pace(&document.pace, problems),
        ca: document.ca,
        graphql,
    }
}

/// A client's share of an upstream, in per cent.
fn per_client(text: Option<&str>, problems: &mut Vec<String>) -> u32 {
    let Some(text) = text else { return PER_CLIENT };
    let percent = text.trim().strip_suffix('%').and_then(|digits| digits.trim_end().parse().ok());
    percent.filter(|percent| (1..=100).contains(percent)).unwrap_or_else(|| {
        problems.push(format!("per_client: {text:?} is not accepted; accepted: 1% to 100%, such as 25%"));
        PER_CLIENT
    })
}

fn pace(document: &PaceDocument, problems: &mut Vec<String>) -> Pace {
    let bytes = document.bytes.unwrap_or(PACE_BYTES);
    if bytes == 0 || bytes > PACE_BYTES_MAX {
        problems.push(format!("pace.bytes: {bytes} is not accepted; accepted: 1 to {PACE_BYTES_MAX}"));
    }
    let over = duration("pace.over", document.over.as_deref(), PACE_OVER, 3_600, problems);
    Pace { bytes, over, first: over / PACE_FIRST }
}

fn host(text: Option<&str>, problems: &mut Vec<String>) -> Host {
    let Some(text) = text else { return Host::Any };
    let (name, is_wild) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
    if !attributes::host::Host::parse(name).is_ok_and(|one| one.as_str() == name) {
        problems.push(format!(
            "host: {text:?} is not accepted; accepted: api.example.com or *.example.com, in small letters, with a port only if it is unusual"
        ));
    }
    if is_wild { Host::Below(name.to_owned()) } else { Host::Exactly(name.to_owned()) }
}

/// Whether a host in its one spelling has a port.
fn has_port(host: &str) -> bool {
    attributes::host::Host::parse(host).is_ok_and(|host| host.has_port())
}

fn paths(text: Option<&str>, problems: &mut Vec<String>) -> Paths {
    let text = text.unwrap_or("/");
    match Template::parse(text) {
        Ok(template) if text.contains('{') => Paths::Template(template),
        Ok(_) => Paths::Below(text.trim_end_matches('/').to_owned()),
        Err(problem) => {
            problems.push(format!("path: {problem}"));
            Paths::Below(String::new())
        }
    }
}

fn upstreams(documents: Vec<UpstreamDocument>, problems: &mut Vec<String>) -> Vec<UpstreamPlan> {
    if documents.is_empty() || documents.len() > UPSTREAMS_MAX {
        let given = documents.len();
        problems.push(format!(
            "upstreams: {given} are given; accepted: 1 to {UPSTREAMS_MAX}, such as [http://127.0.0.1:3000]"
        ));
    }
    let mut plans: Vec<UpstreamPlan> = Vec::new();
    for (index, document) in documents.into_iter().take(UPSTREAMS_MAX).enumerate() {
        let UpstreamDocument(UpstreamTable { url, weight }) = document;
        let weight = weight.unwrap_or(1);
        if weight == 0 || weight > WEIGHT_MAX {
            problems.push(format!("upstreams[{index}].weight: accepted: 1 to {WEIGHT_MAX}"));
        }
        match url.parse::<Target>() {
            Err(problem) => problems.push(format!("upstreams[{index}]: {problem}")),
            Ok(target) if plans.iter().any(|plan| plan.target == target) => {
                problems.push(format!(
                    "upstreams[{index}]: {url:?} is there twice; accepted: once, with a weight"
                ));
            }
            Ok(target) => plans.push(UpstreamPlan { target, weight }),
        }
    }
    plans
}

fn timeouts(document: &TimeoutsDocument, problems: &mut Vec<String>) -> Timeouts {
    let usual = Timeouts::default();
    let mut read = |name: &str, text: &Option<String>, usual, most| {
        duration(&format!("timeouts.{name}"), text.as_deref(), usual, most, problems)
    };
    Timeouts {
        connect: read("connect", &document.connect, usual.connect, 60),
        response: read("response", &document.response, usual.response, 3_600),
        idle: read("idle", &document.idle, usual.idle, 86_400),
    }
}

fn health_plan(document: HealthDocument, problems: &mut Vec<String>) -> HealthPlan {
    let path = document.path.unwrap_or_else(|| "/".to_owned());
    if !path.starts_with('/') || path.parse::<http::uri::PathAndQuery>().is_err() {
        problems.push(format!("health.path: {path:?} is no path; accepted: such as /healthz"));
    }
    let mut count = |name: &str, given: Option<u32>, usual: u32| {
        let count = given.unwrap_or(usual);
        if !(1..=100).contains(&count) {
            problems.push(format!("health.{name}: {count} is not accepted; accepted: 1 to 100"));
        }
        count
    };
    let thresholds = (count("healthy", document.healthy, 2), count("unhealthy", document.unhealthy, 3));
    let seconds = Duration::from_secs;
    let interval = duration("health.interval", document.interval.as_deref(), seconds(5), 3_600, problems);
    let timeout = duration("health.timeout", document.timeout.as_deref(), seconds(2), 60, problems);
    HealthPlan { path, interval, timeout, thresholds }
}

/// Reads a duration between 1 ms and `most` seconds.
fn duration(
    field: &str,
    text: Option<&str>,
    usual: Duration,
    most: u64,
    problems: &mut Vec<String>,
) -> Duration {
    let Some(text) = text else { return usual };
    let read = time_text::duration(text).map(Duration::from).ok();
    let read = read.filter(|read| (Duration::from_millis(1)..=Duration::from_secs(most)).contains(read));
    read.unwrap_or_else(|| {
        problems.push(format!("{field}: {text:?} is not accepted; accepted: 1ms to {most}s, such as 2s"));
        usual
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(text: &str) -> (Vec<RoutePlan>, Vec<String>) {
        let mut problems = Vec::new();
        let documents: Vec<RouteDocument> = serde_saphyr::from_str(text).unwrap();
        (compile(documents, &["ip", "tenant"], &mut problems), problems)
    }

    /// All fields of a route are read.
    #[test]
    fn routes_are_read() {
        let text = "
- name: api
  host: '*.example.com'
  path: /v1/users/{id}
  upstreams: [{url: 'http://10.0.0.1:3000', weight: 3}, 'h2c://10.0.0.2:3000', 'https://[::1]']
  protocol: h2
  timeouts: {connect: 100ms, response: 2s, idle: 10m}
  health: {path: /healthz, interval: 1s, timeout: 500ms, healthy: 1, unhealthy: 2}
  retries: 2
  sticky: [tenant, ip]
  connections: 64
  tunnels: 2000
  per_client: 10%
  pace: {bytes: 3000, over: 30s}
  ca: upstream.pem
- upstreams: ['http://127.0.0.1:3000']
";
        let (plans, problems) = compiled(text);
        assert_eq!(problems, Vec::<String>::new());
        let [api, rest] = &plans[..] else { panic!() };
        assert_eq!(api.host, Host::Below("example.com".to_owned()));
        let targets: Vec<String> = api.upstreams.iter().map(|upstream| upstream.target.to_string()).collect();
        assert_eq!(targets, ["http://10.0.0.1:3000", "h2c://10.0.0.2:3000", "https://[::1]:443"]);
        assert_eq!(api.timeouts.connect, Duration::from_millis(100));
        assert_eq!(api.sticky, ["tenant", "ip"]);
        let flag = RoutePlan::of_flag(&"http://127.0.0.1:3000".parse().unwrap());
        assert_eq!(RoutePlan { name: flag.name.clone(), ..rest.clone() }, flag);
        assert_eq!(rest.name, "route-1");
    }

    /// All problems are reported at once, each with its field.
    #[test]
    fn all_problems_are_reported_together() {
        let text = "
- {name: upstream, host: Example.com, path: v1, upstreams: [], retries: 9, connections: 0, tunnels: 100001, per_client: '0%', pace: {bytes: 0, over: 2h}, sticky: [ip, tennant]}
- {upstreams: ['ftp://a', 'http://a/x', 'http://u:p@a', 'nowhere', {url: 'http://b', weight: 0}, 'http://b:80']}
- {upstreams: ['h2c://c'], protocol: http1, timeouts: {connect: 2h, response: soon}, health: {path: x, healthy: 0}}
";
        let (_, problems) = compiled(text);
        let expected = [
            "routes[0].host: \"Example.com\" is not accepted",
            "routes[0].path: \"v1\" does not begin with /",
            "routes[0].upstreams: 0 are given; accepted: 1 to 64",
            "routes[0].retries: 9 is not accepted; accepted: 0 to 3",
            "routes[0].connections: 0 is not accepted",
            "routes[0].tunnels: 100001 is not accepted; accepted: 1 to 100000",
            "routes[0].per_client: \"0%\" is not accepted; accepted: 1% to 100%",
            "routes[0].pace.bytes: 0 is not accepted; accepted: 1 to 100000000",
            "routes[0].pace.over: \"2h\" is not accepted",
            "routes[0].sticky: \"tennant\" is not read from requests; accepted: ip, tenant, and what",
            "routes[0].name: \"upstream\" is another route's",
            "routes[1].upstreams[0]: \"ftp://a\" has another scheme",
            "routes[1].upstreams[1]: \"http://a/x\" has a path",
            "routes[1].upstreams[2]: \"http://u:p@a\" has a name",
            "routes[1].upstreams[3]: \"nowhere\" has no scheme",
            "routes[1].upstreams[4].weight: accepted: 1 to 100",
            "routes[1].upstreams[5]: \"http://b:80\" is there twice",
            "routes[2].protocol: http1 with h2c://",
            "routes[2].timeouts.connect: \"2h\" is not accepted",
            "routes[2].timeouts.response: \"soon\" is not accepted",
            "routes[2].health.path: \"x\" is no path",
            "routes[2].health.healthy: 0 is not accepted",
            "routes[2].host and path: those of another route",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}
