//! The output of a starting server: its version, its addresses, the limits it enforces, and a command to try.

use std::net::SocketAddr;

use tollgate::Policy;
use tollgate_compat::CompatConfig;

use super::example_request::example_request;
use super::settings::Addresses;
use crate::control::admin::{Credentials, web_console};
use crate::outbound::ProviderPlan;
use crate::reload::Start;

/// Maximum number of limits that are spelled out. `policy check` shows the others.
const SENTENCES_SHOWN: usize = 50;

/// How clients connect to the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) needs_token: bool,
    pub(super) has_tls: bool,
    pub(super) has_client_ca: bool,
}

impl Access {
    const fn is_guarded(self) -> bool {
        self.needs_token || self.has_client_ca
    }

    /// The URL scheme for HTTP clients.
    const fn http(self) -> &'static str {
        if self.has_tls { "https" } else { "http" }
    }

    /// The URL scheme for redis clients.
    const fn redis(self) -> &'static str {
        if self.has_tls { "rediss" } else { "redis" }
    }
}

/// Notes of other modules about the store and the state directory.
pub(super) struct BannerNotes<'a> {
    pub(super) store: &'a [String],
    pub(super) state: &'a [&'a str],
    /// The APIs that are called through the server.
    pub(super) providers: &'a [ProviderPlan],
}

/// The lines of the banner.
pub(super) fn lines(
    start: &Start,
    addresses: &Addresses,
    access: Access,
    notes: &BannerNotes<'_>,
    credentials: &Credentials,
) -> Vec<String> {
    let loaded = &start.loaded;
    let address = addresses.http;
    let mut lines = vec![
        format!("Tollgate {}: rate-limiting decisions", env!("CARGO_PKG_VERSION")),
        String::new(),
        format!("  HTTP    {}://{address}", access.http()),
        addresses.grpc.map_or_else(|| "  gRPC    off".to_owned(), |grpc| format!("  gRPC    {grpc}")),
        format!(
            "  RESP    {}",
            addresses.resp.map_or("off".to_owned(), |resp| format!("{}://{resp}", access.redis()))
        ),
        notes.store.iter().map(|line| format!("  store   {line}")).collect::<Vec<_>>().join("\n"),
        format!("  policy  {}", loaded.name),
        format!("  admin   {}://{address}/admin/v1/ with {}", access.http(), credentials.notice),
        format!("  console {}://{}{}", access.http(), reachable(address), web_console::PATH),
    ];
    lines.extend(addresses.gateway.map(|gateway| format!("  gateway {}://{gateway}", access.http())));
    lines.extend(addresses.outbound.map(|outbound| format!("  outbound {}://{outbound}", access.http())));
    lines.extend(notes.state.iter().map(|state| format!("  state   {state}")));
    let all = [Some(address), addresses.grpc, addresses.resp];
    let open = all.into_iter().flatten().find(|open| !open.ip().is_loopback()).unwrap_or(address);
    lines.extend(warnings(start, open, access));
    lines.push(String::new());
    // A server that only calls others has no use for the example policy.
    let only_calls = loaded.is_example() && addresses.gateway.is_none() && addresses.outbound.is_some();
    match loaded.rules.compat() {
        None if only_calls => {}
        None => lines.extend(limits(loaded.rules.policy().sentences())),
        Some(compat) => {
            let format = compat.format().name();
            lines.push(format!("{format}: decided by the rules of the program that it was written for."));
            lines.extend(limits(compat.sentences()));
        }
    }
    if !notes.providers.is_empty() {
        if !only_calls {
            lines.push(String::new());
        }
        lines.extend(calls(notes.providers));
    }
    if !loaded.warnings.is_empty() && !only_calls {
        lines.push(String::new());
        lines.extend(loaded.warnings.to_string().lines().map(str::to_owned));
    }
    lines.push(String::new());
    lines.push("Try it:".to_owned());
    let called = addresses.outbound.zip(notes.providers.first()).filter(|_| only_calls);
    lines.push(match (loaded.rules.compat(), addresses.gateway) {
        (None, Some(gateway)) => format!("  {}", gateway_attempt(gateway, access)),
        (None, None) => match called {
            Some((outbound, provider)) => format!("  {}", call_attempt(outbound, provider, access)),
            None => format!("  {}", attempt(loaded.rules.policy(), address, access)),
        },
        (Some(compat), _) => format!("  {}", compat_attempt(compat, address, access)),
    });
    lines.push(String::new());
    lines.push("Stop it with Ctrl-C or SIGTERM; requests in flight are answered first.".to_owned());
    lines
}

fn limits(all: Vec<String>) -> Vec<String> {
    let count = all.len();
    let mut lines = vec!["Limits:".to_owned()];
    lines.extend(all.into_iter().take(SENTENCES_SHOWN).map(|sentence| format!("  {sentence}")));
    if count == 0 {
        lines.push("  none: every request is allowed".to_owned());
    }
    if count > SENTENCES_SHOWN {
        lines.push(format!(
            "  and {} more; `tollgate policy check` shows all of them",
            count - SENTENCES_SHOWN
        ));
    }
    lines
}

/// The APIs that are called, and the limits of the calls to each.
fn calls(providers: &[ProviderPlan]) -> Vec<String> {
    let mut lines = vec!["Calls to other APIs:".to_owned()];
    for provider in providers {
        lines.push(format!("  {} → {}{}", provider.name, provider.origin, provider.base));
        // A file that cannot be used ends the start with its problem.
        let sentences = provider.policy().map(|policy| policy.sentences()).unwrap_or_default();
        if sentences.is_empty() {
            lines.push("    no limits but those that its answers report".to_owned());
        }
        lines.extend(sentences.into_iter().take(SENTENCES_SHOWN).map(|sentence| format!("    {sentence}")));
    }
    lines
}

/// A command that sends a rate-limit request of Envoy.
fn compat_attempt(compat: &CompatConfig, address: SocketAddr, access: Access) -> String {
    let (command, base) = curl(address, access);
    let domain = compat.domains().first().copied().unwrap_or("ingress").to_owned();
    let body = serde_json::json!({ "domain": domain, "descriptors": [{ "entries": [{ "key": "user", "value": "demo" }] }] });
    match body.to_string() {
        body if body.contains('\'') => format!("{command}{base}/healthz"),
        body => format!("{command}{base}/json -d '{body}'"),
    }
}

/// A command that sends a request to which limits of this policy apply.
fn attempt(policy: &Policy, address: SocketAddr, access: Access) -> String {
    let (command, base) = curl(address, access);
    match example_request(policy) {
        Some(body) => {
            format!("{command}{base}/v1/check -H 'Content-Type: application/json' -d '{body}'")
        }
        None => format!("{command}{base}/healthz"),
    }
}

/// A command that sends a request through the gateway. Its clients are those of the service: they have no token of
/// Tollgate's.
fn gateway_attempt(gateway: SocketAddr, access: Access) -> String {
    let authority = if access.has_tls { "--cacert CA.pem " } else { "" };
    format!("curl -i {authority}{}://{}/", access.http(), reachable(gateway))
}

/// A command that sends a call through the outbound proxy, which asks for certificates and for no token.
fn call_attempt(outbound: SocketAddr, provider: &ProviderPlan, access: Access) -> String {
    let (command, _) = curl(outbound, Access { needs_token: false, ..access });
    format!("{command}-i {}://{}{}/", access.http(), reachable(outbound), provider.prefix)
}

/// The beginning of a command with the needed credentials, and the base URL.
fn curl(address: SocketAddr, access: Access) -> (String, String) {
    let mut command = String::from("curl -s ");
    if access.has_tls {
        command.push_str("--cacert CA.pem ");
    }
    if access.has_client_ca {
        command.push_str("--cert CLIENT.pem --key CLIENT-KEY.pem ");
    }
    if access.needs_token {
        command.push_str("-H \"Authorization: Bearer $TOKEN\" ");
    }
    let base = format!("{}://{}", access.http(), reachable(address));
    (command, base)
}

/// Warnings that the operator should see immediately.
fn warnings(start: &Start, address: SocketAddr, access: Access) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(error) = &start.error {
        warnings
            .push("  warning: the policy file cannot be used, so the last good policy is active:".to_owned());
        warnings.extend(error.lines().map(|line| format!("    {line}")));
    }
    if !address.ip().is_loopback() && !access.is_guarded() {
        warnings.push(
            "  warning: --insecure: any client that reaches this address can use up the quota of any key"
                .to_owned(),
        );
    }
    if !address.ip().is_loopback() && access.is_guarded() && !access.has_tls {
        warnings.push(
            "  warning: without TLS the token can be read on its way; add --tls-cert and --tls-key"
                .to_owned(),
        );
    }
    warnings
}

/// The address to connect to: a server that listens on a wildcard is reached on loopback.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], v6.port()))
        }
        _ => address,
    }
}

pub(super) fn bytes(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let exact = units.iter().find(|(_, unit)| bytes.is_multiple_of(*unit));
    exact.map_or_else(|| format!("{bytes} bytes"), |(name, unit)| format!("{} {name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes are shown in the largest exact unit.
    #[test]
    fn sizes_are_shown_exactly() {
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(3 << 30), "3 GiB");
        assert_eq!(bytes(500_000_001), "500000001 bytes");
    }

    /// A wildcard is not an address to connect to.
    #[test]
    fn the_line_to_try_names_an_address_that_answers() {
        assert_eq!(reachable("0.0.0.0:1".parse().unwrap()).to_string(), "127.0.0.1:1");
        assert_eq!(reachable("[::]:1".parse().unwrap()).to_string(), "[::1]:1");
    }
}
