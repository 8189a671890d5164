//! The call of a request: the attributes that limits count by, out of its head.

use http::HeaderMap;
use http::request::Parts;
use tollgate::host::Host;
use tollgate::request::VALUE_BYTES_MAX;
use tollgate::{CredentialDigest, RequestError, Ticks, Timestamp};

use crate::call::Call;
use crate::settings::Settings;

/// The host of requests that name none, so that limits by host count them together.
const HOST_UNKNOWN: &str = "unknown";
/// The headers that carry a credential, by precedence.
const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
/// A segment of a path of at least this many characters that has a digit is an identifier.
const IDENTIFIER_MIN: usize = 16;
/// The resources that Discord counts apart in each bucket.
const RESOURCES: [&str; 3] = ["channels", "guilds", "webhooks"];
/// The header in which a gRPC client says how long the call may take.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The call of a request. A [`Call`] in the extensions of the request is the base; its own attributes win. The scope is
/// that of a server that names buckets.
pub(crate) fn call_of(parts: &Parts, settings: &Settings, now: Timestamp) -> Result<Call, RequestError> {
    let mut call = parts.extensions.get::<Call>().cloned().unwrap_or_default();
    let path = parts.uri.path();
    let attributes = [
        (Call::HOST, Some(host(parts).unwrap_or_else(|| HOST_UNKNOWN.to_owned()))),
        (Call::ROUTE, Some(route(parts.method.as_str(), path))),
        ("method", Some(parts.method.as_str().to_owned())),
        ("path", Some(path.to_owned()).filter(|path| path.len() <= VALUE_BYTES_MAX)),
        ("api_key", credential(&parts.headers)),
        (Call::SCOPE, resource(path).filter(|_| settings.discovers_buckets)),
    ];
    for (name, value) in attributes {
        if let Some(value) = value.filter(|_| call.text(name).is_none()) {
            call = call.with(name, value)?;
        }
    }
    match grpc_timeout(&parts.headers) {
        Some(timeout) if call.deadline_at().is_none() => Ok(call.deadline(now + timeout)),
        _ => Ok(call),
    }
}

fn host(parts: &Parts) -> Option<String> {
    let header = || parts.headers.get(http::header::HOST)?.to_str().ok();
    let text = parts.uri.authority().map(http::uri::Authority::as_str).or_else(header)?;
    let text = text.rsplit_once('@').map_or(text, |(_, host)| host);
    Host::parse(text).ok().map(|host| host.as_str().to_owned())
}

/// The digest of the credential. The credential itself is not kept.
fn credential(headers: &HeaderMap) -> Option<String> {
    let header = CREDENTIALS.iter().find_map(|name| headers.get(*name))?;
    let text = String::from_utf8_lossy(header.as_bytes());
    // Without the scheme, so that a policy can name the key itself.
    let key = text.split_once(' ').map_or(&*text, |(_, key)| key.trim_start());
    Some(CredentialDigest::of(key).as_str().to_owned())
}

/// The method and the path, with `{id}` in place of identifiers.
fn route(method: &str, path: &str) -> String {
    let mut route = method.to_owned();
    route.push(' ');
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        route.push('/');
        route.push_str(if is_identifier(segment) { "{id}" } else { segment });
    }
    route.truncate(route.floor_char_boundary(VALUE_BYTES_MAX));
    route
}

/// The first of the resources in a path, such as `channels/41`.
fn resource(path: &str) -> Option<String> {
    let mut segments = path.split('/').skip_while(|segment| !RESOURCES.contains(segment));
    let (name, id) = (segments.next()?, segments.next()?);
    is_identifier(id).then(|| format!("{name}/{id}"))
}

/// Whether a segment of a path is a number, a UUID, a digest, or a similar long text with digits.
fn is_identifier(segment: &str) -> bool {
    let has_digit = segment.bytes().any(|byte| byte.is_ascii_digit());
    has_digit && (segment.len() >= IDENTIFIER_MIN || segment.bytes().all(|byte| byte.is_ascii_digit()))
}

/// How long a gRPC call may take: up to eight digits and a unit.
fn grpc_timeout(headers: &HeaderMap) -> Option<Ticks> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    let micros = match unit {
        "H" => number * 3_600_000_000,
        "M" => number * 60_000_000,
        "S" => number * 1_000_000,
        "m" => number * 1_000,
        "u" => number,
        "n" => number.div_ceil(1_000),
        _ => return None,
    };
    Some(Ticks::from_micros(micros))
}

/// Writes what is left of the time into a gRPC request, so that the server does not work for a caller that is gone.
pub(crate) fn propagate_deadline(headers: &mut HeaderMap, deadline: Option<Timestamp>, now: Timestamp) {
    let Some(left) = deadline.map(|deadline| deadline.since(now).as_micros() / 1_000) else { return };
    if headers.contains_key(GRPC_TIMEOUT)
        && let Ok(value) = format!("{}m", left.min(99_999_999)).parse()
    {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(request: http::request::Builder) -> Parts {
        request.body(()).unwrap().into_parts().0
    }

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    /// Identifiers in a path do not make routes of their own, and the credential is only kept as a digest.
    #[test]
    fn a_request_gives_host_route_and_digest() {
        let request = http::Request::post(
            "https://API.example.com:443/v1/users/4711/messages/550e8400-e29b-41d4-a716?x=1",
        );
        let call =
            call_of(&parts(request.header("authorization", "Bearer s3cret-key")), &Settings::default(), NOW)
                .unwrap();
        assert_eq!(call.text("host"), Some("api.example.com"));
        assert_eq!(call.text("route"), Some("POST /v1/users/{id}/messages/{id}"));
        let key = call.text("api_key").unwrap();
        assert_eq!(key, CredentialDigest::of("s3cret-key").as_str());
        assert!(!key.contains("s3cret") && !format!("{call:?}").contains("s3cret"), "{call:?}");
    }

    /// What the program states about the call wins over what its request says.
    #[test]
    fn attributes_of_the_program_win() {
        let request = http::Request::get("/v2/chat").header("host", "example.com:8080");
        let own = Call::new().with("route", "chat").unwrap().with("model", "m-1").unwrap();
        let call = call_of(&parts(request.extension(own)), &Settings::default(), NOW).unwrap();
        let texts = ["host", "route", "model"].map(|name| call.text(name).unwrap().to_owned());
        assert_eq!(texts, ["example.com:8080", "chat", "m-1"]);
    }

    /// Discord counts each channel, guild and webhook apart. Other servers have no such scope.
    #[test]
    fn the_resource_of_discord_is_the_scope() {
        let settings = Settings { discovers_buckets: true, ..Settings::default() };
        for (path, scope) in [
            ("/api/v10/channels/41/messages/7", Some("channels/41")),
            ("/guilds/1/channels", Some("guilds/1")),
            ("/api/webhooks/175928847299117063/tok-3n", Some("webhooks/175928847299117063")),
            ("/users/@me/channels", None),
            ("/gateway/bot", None),
        ] {
            let parts = parts(http::Request::get(path).header("host", "discord.com"));
            let call = call_of(&parts, &settings, NOW).unwrap();
            assert_eq!(call.text(Call::SCOPE), scope, "{path}");
            assert_eq!(call_of(&parts, &Settings::default(), NOW).unwrap().text(Call::SCOPE), None);
        }
    }

    /// The time of a gRPC call bounds its wait, and the next attempt carries what is left.
    #[test]
    fn the_deadline_of_a_grpc_call_goes_on() {
        let mut parts = parts(http::Request::post("http://h/s/M").header("grpc-timeout", "1500m"));
        let call = call_of(&parts, &Settings::default(), NOW).unwrap();
        assert_eq!(call.deadline_at(), Some(NOW + Ticks::from_millis(1_500)));
        propagate_deadline(&mut parts.headers, call.deadline_at(), NOW + Ticks::from_millis(600));
        assert_eq!(parts.headers["grpc-timeout"], "900m");
    }
}
