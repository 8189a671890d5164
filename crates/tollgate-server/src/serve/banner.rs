//! The output of a starting server: its version, its addresses, the limits it enforces, and a command to try.

use std::net::SocketAddr;

use tollgate::Policy;
use tollgate_compat::CompatConfig;

use super::listeners::Addresses;
use super::sample::sample;
use crate::cli::ServeArguments;
use crate::control::admin::Credentials;
use crate::reload::Start;

/// Maximum number of limits that are spelled out. `policy check` shows the others.
const SENTENCES_SHOWN: usize = 50;

/// Notes of other modules about the store and the state directory.
pub(super) struct BannerNotes<'a> {
    pub(super) store: &'a [String],
    pub(super) state: &'a [&'a str],
}

/// The lines of the banner.
pub(super) fn lines(
    start: &Start,
    addresses: &Addresses,
    arguments: &ServeArguments,
    needs_token: bool,
    told: &BannerNotes<'_>,
    credentials: &Credentials,
) -> Vec<String> {
    let loaded = &start.loaded;
    let address = addresses.http;
    let mut lines = vec![
        format!("Tollgate {}: rate-limiting decisions", env!("CARGO_PKG_VERSION")),
        String::new(),
        format!("  HTTP    {}://{address}", scheme(arguments)),
        addresses.grpc.map_or_else(|| "  gRPC    off".to_owned(), |grpc| format!("  gRPC    {grpc}")),
        format!(
            "  RESP    {}",
            addresses.resp.map_or("off".to_owned(), |resp| format!("{}://{resp}", redis(arguments)))
        ),
        told.store.iter().map(|line| format!("  store   {line}")).collect::<Vec<_>>().join("\n"),
        format!("  policy  {}", loaded.name),
        format!("  admin   {}://{address}/admin/v1/ with {}", scheme(arguments), credentials.notice),
    ];
    lines.extend(addresses.gateway.map(|gateway| format!("  gateway {}://{gateway}", scheme(arguments))));
    lines.extend(told.state.iter().map(|state| format!("  state   {state}")));
    let is_guarded = needs_token || arguments.security.tls_client_ca.is_some();
    let all = [Some(address), addresses.grpc, addresses.resp];
    let open = all.into_iter().flatten().find(|open| !open.ip().is_loopback()).unwrap_or(address);
    lines.extend(warnings(start, open, arguments.security.tls_cert.is_some(), is_guarded));
    lines.push(String::new());
    match loaded.rules.foreign() {
        None => lines.extend(limits(loaded.rules.policy().sentences())),
        Some(foreign) => {
            let format = foreign.format().name();
            lines.push(format!("{format}: decided by the rules of the program that it was written for."));
            lines.extend(limits(foreign.sentences()));
        }
    }
    if !loaded.warnings.is_empty() {
        lines.push(String::new());
        lines.extend(loaded.warnings.to_string().lines().map(str::to_owned));
    }
    lines.push(String::new());
    lines.push("Try it:".to_owned());
    lines.push(match loaded.rules.foreign() {
        None => format!("  {}", attempt(loaded.rules.policy(), address, arguments, needs_token)),
        Some(foreign) => format!("  {}", foreign_attempt(foreign, address, arguments, needs_token)),
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

/// A command that sends a rate-limit request of Envoy.
fn foreign_attempt(
    foreign: &CompatConfig,
    address: SocketAddr,
    arguments: &ServeArguments,
    needs_token: bool,
) -> String {
    let (command, base) = curl(address, arguments, needs_token);
    let domain = foreign.domains().first().copied().unwrap_or("ingress").to_owned();
    let body = serde_json::json!({ "domain": domain, "descriptors": [{ "entries": [{ "key": "user", "value": "demo" }] }] });
    match body.to_string() {
        body if body.contains('\'') => format!("{command}{base}/healthz"),
        body => format!("{command}{base}/json -d '{body}'"),
    }
}

/// A command that sends a request to which limits of this policy apply.
fn attempt(policy: &Policy, address: SocketAddr, arguments: &ServeArguments, needs_token: bool) -> String {
    let (command, base) = curl(address, arguments, needs_token);
    match sample(policy) {
        Some(body) => {
            format!("{command}{base}/v1/check -H 'Content-Type: application/json' -d '{body}'")
        }
        None => format!("{command}{base}/healthz"),
    }
}

/// The beginning of a command with the needed credentials, and the base URL.
fn curl(address: SocketAddr, arguments: &ServeArguments, needs_token: bool) -> (String, String) {
    let mut command = String::from("curl -s ");
    if arguments.security.tls_cert.is_some() {
        command.push_str("--cacert AUTHORITY.pem ");
    }
    if arguments.security.tls_client_ca.is_some() {
        command.push_str("--cert CLIENT.pem --key CLIENT-KEY.pem ");
    }
    if needs_token {
        command.push_str("-H \"Authorization: Bearer $TOKEN\" ");
    }
    let base = format!("{}://{}", scheme(arguments), reachable(address));
    (command, base)
}

const fn scheme(arguments: &ServeArguments) -> &'static str {
    if arguments.security.tls_cert.is_some() { "https" } else { "http" }
}

/// The URL scheme for redis clients.
const fn redis(arguments: &ServeArguments) -> &'static str {
    if arguments.security.tls_cert.is_some() { "rediss" } else { "redis" }
}

/// Warnings that the operator should see immediately.
fn warnings(start: &Start, address: SocketAddr, has_tls: bool, is_guarded: bool) -> Vec<String> {
    let mut told = Vec::new();
    if let Some(error) = &start.error {
        told.push(
            "  warning: the policy file cannot be used, so the last good policy is in force:".to_owned(),
        );
        told.extend(error.lines().map(|line| format!("    {line}")));
    }
    if !address.ip().is_loopback() && !is_guarded {
        told.push(
            "  warning: --insecure: whoever reaches this address can use up anybody's quota".to_owned(),
        );
    }
    if !address.ip().is_loopback() && is_guarded && !has_tls {
        told.push(
            "  warning: without TLS the token can be read on its way; add --tls-cert and --tls-key"
                .to_owned(),
        );
    }
    told
}

/// The address to connect to: a server that listens on a wildcard is reached on loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
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
