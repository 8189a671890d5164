//! The section `outbound` of the config, and its compiled form. Compiling reports every problem at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use serde::Deserialize;
use tollgate::policy::source::{nearest, quoted};
use tollgate::policy::{Finding, Mode};
use tollgate::request::VALUE_BYTES_MAX;
use tollgate::{Policy, PolicyError};
use tollgate_gateway::{ClientPlan, Target, pem};
use tollgate_outbound::{Call, Preset};

use super::estimate::{CostUnit, INPUT_TOKENS, MAX_TOKENS};
use crate::policy_spelling;
use crate::policy_warnings::Doubts;
use crate::text::unknown_name;
use crate::time_text;

/// The attribute that has the name of the provider.
pub(super) const PROVIDER: &str = "provider";

/// Where the proxy listens if neither the config nor a flag says it.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8090);
/// Maximum number of providers.
const PROVIDERS_MAX: usize = 64;
/// Longest name of a provider, which is a label of metrics.
const NAME_BYTES_MAX: usize = 64;
const CONNECT: Duration = Duration::from_secs(5);
/// A model that thinks before its first byte takes minutes.
const RESPONSE: Duration = Duration::from_secs(600);
/// How long a call waits that does not say it.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest accepted wait.
pub(super) const MAX_WAIT_MAX: Duration = Duration::from_secs(3_600);
/// Maximum number of attributes that a provider may state.
const ATTRIBUTES_MAX: usize = 16;
/// The attributes that each call has of its own.
const OWN_ATTRIBUTES: [&str; 7] = [PROVIDER, "host", "route", "method", "path", INPUT_TOKENS, MAX_TOKENS];

/// The attributes that calls can have without `attributes` in the config.
const CALL_ATTRIBUTES: [&str; 11] = [
    PROVIDER,
    "host",
    "route",
    "method",
    "path",
    "api_key",
    "model",
    "operation",
    "scope",
    INPUT_TOKENS,
    MAX_TOKENS,
];
/// A policy with which only the limits of the provider hold.
const NO_LIMITS: &str = "limits: []";

/// The section as the config writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboundDocument {
    listen: Option<String>,
    max_wait: Option<String>,
    providers: BTreeMap<String, ProviderDocument>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderDocument {
    url: String,
    prefix: Option<String>,
    preset: Option<String>,
    policy: Option<PathBuf>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    max_wait: Option<String>,
    connections: Option<usize>,
    ca: Option<PathBuf>,
    #[serde(default)]
    timeouts: ProviderTimeouts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderTimeouts {
    connect: Option<String>,
    response: Option<String>,
}

/// The proxy, ready to be built.
#[derive(Clone, Debug)]
pub(crate) struct OutboundPlan {
    pub(crate) listen: SocketAddr,
    pub(crate) providers: Vec<ProviderPlan>,
}

/// One API that is called.
#[derive(Clone, Debug)]
pub(crate) struct ProviderPlan {
    pub(crate) name: String,
    /// The paths of its calls begin with this, without a slash at the end.
    pub(crate) prefix: String,
    /// Its URL, without a path.
    pub(crate) origin: String,
    /// The path of its URL, without a slash at the end.
    pub(crate) base: String,
    pub(crate) client: ClientPlan,
    /// How the API counts, if it is a known one.
    pub(crate) preset: Option<Preset>,
    /// The limits of our own, instead of those of the preset. Without either only those hold that the API reports.
    pub(crate) policy: Option<PathBuf>,
    /// The provider's name, and what the config says about all of its calls.
    pub(crate) base_call: Call,
    pub(crate) unit: CostUnit,
    pub(crate) max_wait: Duration,
}

impl OutboundDocument {
    /// Compiles the section. Each problem begins with its field.
    pub(crate) fn compile(self, problems: &mut Vec<String>) -> OutboundPlan {
        let mut report = |problem: String| problems.push(format!("outbound.{problem}"));
        let listen = self.listen.map_or(LISTEN, |text| {
            text.parse().unwrap_or_else(|_| {
                report(format!("listen: {text:?} is no address; accepted: one such as 127.0.0.1:8090"));
                LISTEN
            })
        });
        let max_wait = wait("max_wait", self.max_wait.as_deref(), MAX_WAIT, &mut report);
        if self.providers.is_empty() || self.providers.len() > PROVIDERS_MAX {
            report(format!("providers: accepted: 1 to {PROVIDERS_MAX}"));
        }
        let mut providers: Vec<ProviderPlan> = Vec::new();
        for (name, document) in self.providers {
            let mut report = |problem: String| report(format!("providers.{name}.{problem}"));
            let Some(plan) = provider(&name, document, max_wait, &mut report) else { continue };
            if providers.iter().any(|other| other.prefix == plan.prefix) {
                report("prefix: it is another provider's; accepted: each prefix once".to_owned());
            }
            providers.push(plan);
        }
        // The most specific prefix is found first.
        providers.sort_by_key(|plan| std::cmp::Reverse(plan.prefix.len()));
        OutboundPlan { listen, providers }
    }
}

impl ProviderPlan {
    /// The policy for its calls: its own, or that of the preset. Without either nothing but the provider's numbers limits
    /// them.
    ///
    /// # Errors
    /// The file of its own policy cannot be used.
    pub(crate) fn policy(&self) -> Result<Policy, PolicyError> {
        match &self.policy {
            Some(path) => Policy::open(path),
            None => self.preset.map_or(NO_LIMITS, |preset| preset.policy_text()).parse(),
        }
    }

    /// The limits of its own policy that apply to none of its calls, because no call has an attribute that they need.
    fn doubts(&self) -> Vec<Finding> {
        let Some((path, policy)) = self.policy.as_ref().zip(self.policy().ok()) else { return Vec::new() };
        let name = path.display().to_string();
        let doubts = Doubts { file: &name, policy: &policy };
        let mut found = Vec::new();
        for (index, limit) in
            policy.limits().iter().enumerate().filter(|(_, limit)| limit.mode() != Mode::Off)
        {
            for (field, needed) in policy_spelling::needed(limit) {
                let is_had = self.base_call.text(needed).is_some() || policy.declares(needed);
                if is_had || CALL_ATTRIBUTES.contains(&needed) {
                    continue;
                }
                let provider = &self.name;
                let meant = nearest(needed, CALL_ATTRIBUTES);
                let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                let message = format!(
                    "no call to the provider {provider} has an attribute {}, so the limit never applies{meant}",
                    quoted(needed)
                );
                let accepted = format!(
                    "{}, or a name under outbound.providers.{provider}.attributes",
                    CALL_ATTRIBUTES.join(", ")
                );
                found.push(doubts.finding(index, &field, message, accepted));
            }
        }
        found
    }
}

impl OutboundPlan {
    /// The limits that apply to no call, in the order of the providers' names.
    pub(crate) fn doubts(&self) -> Vec<Finding> {
        let mut providers: Vec<&ProviderPlan> = self.providers.iter().collect();
        providers.sort_by(|a, b| a.name.cmp(&b.name));
        providers.into_iter().flat_map(ProviderPlan::doubts).collect()
    }

    /// The problems of the files that providers name, each of which begins with its field.
    pub(crate) fn file_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for ProviderPlan { name, origin, client, policy, .. } in &self.providers {
            let ca = client.ca.as_deref().filter(|_| origin.starts_with("https:"));
            let ca = ca.and_then(|path| pem::authorities(path).err());
            problems.extend(ca.map(|problem| format!("outbound.providers.{name}.ca: {problem}")));
            let policy = policy.as_ref().and_then(|path| Policy::open(path).err());
            let found = policy.map(|error| error.to_string()).unwrap_or_default();
            problems.extend(found.lines().map(|line| format!("outbound.providers.{name}.policy: {line}")));
        }
        problems
    }
}

fn provider(
    name: &str,
    document: ProviderDocument,
    max_wait: Duration,
    report: &mut impl FnMut(String),
) -> Option<ProviderPlan> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        report(format!(
            "name: accepted: 1 to {NAME_BYTES_MAX} letters, digits, hyphens, dots and underscores"
        ));
    }
    let prefix = document.prefix.unwrap_or_else(|| format!("/{name}"));
    let prefix = prefix.strip_suffix('/').unwrap_or(&prefix).to_owned();
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    if !prefix.is_empty() && (!prefix.starts_with('/') || !prefix.bytes().all(is_path)) {
        report(format!(
            "prefix: {prefix:?} is not accepted; accepted: a plain path such as /{name}, or / for all paths"
        ));
    }
    let preset = document.preset.and_then(|name| {
        let preset = Preset::named(&name);
        if preset.is_none() {
            let known = Preset::ALL.map(|preset| preset.name());
            report(unknown_name(&format!("preset: {name:?} is not known"), &name, &known));
        }
        preset
    });
    let base_call = base_call(name, document.attributes, report);
    let connections = document.connections.unwrap_or(ClientPlan::CONNECTIONS);
    if !(1..=ClientPlan::CONNECTIONS_MAX).contains(&connections) {
        report(format!(
            "connections: {connections} is not accepted; accepted: 1 to {}",
            ClientPlan::CONNECTIONS_MAX
        ));
    }
    let max_wait = wait("max_wait", document.max_wait.as_deref(), max_wait, report);
    let connect = wait("timeouts.connect", document.timeouts.connect.as_deref(), CONNECT, report);
    let response = wait("timeouts.response", document.timeouts.response.as_deref(), RESPONSE, report);
    let (origin, base, target) = match parsed_url(&document.url) {
        Ok(parsed) => parsed,
        Err(problem) => {
            report(format!("url: {problem}"));
            return None;
        }
    };
    let name = name.to_owned();
    let client = ClientPlan { name: name.clone(), target, connect, response, ca: document.ca, connections };
    let (policy, unit) = (document.policy, CostUnit::of(preset));
    Some(ProviderPlan { name, prefix, origin, base, client, preset, policy, base_call, unit, max_wait })
}

/// The call that all calls to a provider begin with.
fn base_call(name: &str, attributes: BTreeMap<String, String>, report: &mut impl FnMut(String)) -> Call {
    if attributes.len() > ATTRIBUTES_MAX {
        report(format!("attributes: accepted: at most {ATTRIBUTES_MAX}"));
    }
    // Names and values of this length are attributes; a name that is too long is reported where it is read.
    let mut call = Call::new().with(PROVIDER, name).unwrap_or_default();
    for (name, value) in attributes.into_iter().take(ATTRIBUTES_MAX) {
        if OWN_ATTRIBUTES.contains(&name.as_str()) {
            report(format!("attributes.{name}: each call has its own; accepted: other names, such as plan"));
        } else if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            report(format!("attributes.{name}: accepted: a text of 1 to {VALUE_BYTES_MAX} bytes"));
        } else {
            match call.clone().with(&name, value) {
                Ok(next) => call = next,
                Err(problem) => report(format!("attributes.{name}: {problem}")),
            }
        }
    }
    call
}

/// The origin, the path and the target of a provider's URL.
fn parsed_url(url: &str) -> Result<(String, String, Target), String> {
    let accepted = "accepted: http://host:port or https://host, with or without a path";
    let uri: Uri = url.parse().map_err(|_| format!("{url:?} is no URL; {accepted}"))?;
    let (Some(scheme @ ("http" | "https")), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(format!("{url:?} is not complete; {accepted}"));
    };
    if uri.query().is_some() {
        return Err(format!("{url:?} has a query; {accepted}"));
    }
    let origin = format!("{scheme}://{authority}");
    let target = origin.parse()?;
    Ok((origin, uri.path().trim_end_matches('/').to_owned(), target))
}

fn wait(field: &str, text: Option<&str>, usual: Duration, report: &mut impl FnMut(String)) -> Duration {
    let Some(text) = text else { return usual };
    match time_text::duration(text).map(Duration::from) {
        Ok(wait) if !wait.is_zero() && wait <= MAX_WAIT_MAX => wait,
        Ok(_) => {
            report(format!("{field}: {text:?} is not accepted; accepted: more than 0s, and at most 1h"));
            usual
        }
        Err(problem) => {
            report(format!("{field}: {problem}"));
            usual
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The plan of a provider whose document is written so.
    pub(in crate::outbound) fn plan_of(provider: &str) -> ProviderPlan {
        let (plan, problems) = compiled(&format!("providers: {{api: {provider}}}"));
        assert!(problems.is_empty(), "{problems:?}");
        plan.providers.into_iter().next().unwrap()
    }

    fn compiled(text: &str) -> (OutboundPlan, Vec<String>) {
        let document: OutboundDocument = serde_saphyr::from_str(text).unwrap();
        let mut problems = Vec::new();
        (document.compile(&mut problems), problems)
    }

    /// Fields that are left out have their defaults, and the most specific prefix comes first.
    #[test]
    fn a_section_is_read() {
        let (plan, problems) = compiled(
            "max_wait: 30s\nproviders:\n  openai: {url: https://api.openai.com, preset: openai}\n  \
             eu: {url: 'http://127.0.0.1:9/base/', prefix: /openai/eu/, max_wait: 5s, policy: p.yaml}",
        );
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(plan.listen.to_string(), "127.0.0.1:8090");
        let [eu, openai] = &plan.providers[..] else { panic!("{plan:?}") };
        assert_eq!((eu.prefix.as_str(), eu.base.as_str()), ("/openai/eu", "/base"));
        assert_eq!((eu.max_wait.as_secs(), eu.origin.as_str()), (5, "http://127.0.0.1:9"));
        assert!(eu.preset.is_none() && openai.preset.is_some_and(|preset| preset.name() == "openai"));
        assert_eq!((openai.prefix.as_str(), openai.base.as_str()), ("/openai", ""));
        assert_eq!((openai.max_wait.as_secs(), openai.client.response.as_secs()), (30, 600));
    }

    /// A provider states what its preset cannot know, its connections have a bound, and the presets of APIs that
    /// count tokens make tokens the cost.
    #[test]
    fn a_provider_states_its_attributes() {
        let stripe =
            plan_of("{url: 'https://x', preset: stripe, attributes: {plan: live}, connections: 2000}");
        assert_eq!(
            (stripe.base_call.text("plan"), stripe.base_call.text("provider")),
            (Some("live"), Some("api"))
        );
        assert_eq!((stripe.client.connections, stripe.unit), (2_000, CostUnit::Calls));
        let openai = plan_of("{url: 'https://x', preset: openai}");
        assert_eq!((openai.client.connections, openai.unit), (512, CostUnit::Tokens));
    }

    /// Every problem names its field and what would be accepted.
    #[test]
    fn problems_are_reported_at_once() {
        let (_, problems) = compiled(
            "listen: here\nmax_wait: 2h\nproviders:\n  a: {url: 'ftp://x'}\n  b: {url: 'http://x?q', prefix: b}\n  \
             c: {url: 'http://x', prefix: /d, preset: opnai, timeouts: {response: soon}}\n  d: {url: 'http://x'}\n  'e f': {url: 'http://x'}\n  \
             g: {url: 'http://x', attributes: {host: y, plan: ''}, connections: 0}",
        );
        let expected = [
            "outbound.listen: \"here\" is no address; accepted: ",
            "outbound.max_wait: \"2h\" is not accepted; accepted: more than 0s, and at most 1h",
            "outbound.providers.a.url: \"ftp://x\" is not complete; accepted: ",
            "outbound.providers.b.prefix: \"b\" is not accepted; accepted: a plain path such as /b",
            "outbound.providers.b.url: \"http://x?q\" has a query",
            "outbound.providers.c.preset: \"opnai\" is not known; did you mean openai? accepted: anthropic, ",
            "outbound.providers.c.timeouts.response: not a duration; accepted: ",
            "outbound.providers.d.prefix: it is another provider's",
            "outbound.providers.e f.name: accepted: ",
            "outbound.providers.e f.prefix: ",
            "outbound.providers.g.attributes.host: each call has its own; accepted: other names",
            "outbound.providers.g.attributes.plan: accepted: a text of 1 to 4096 bytes",
            "outbound.providers.g.connections: 0 is not accepted; accepted: 1 to 10000",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
        let (_, problems) = compiled("providers: {}");
        assert_eq!(problems, ["outbound.providers: accepted: 1 to 64"]);
    }
}
