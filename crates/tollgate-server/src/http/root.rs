//! `GET /`: what runs here and where everything is, as a page for browsers and as JSON for programs.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

use crate::problem::response;

/// Where to read on.
const DOCUMENTATION: &str = "docs/http.md in the source; /v1/openapi.json describes every path";
/// Each path, and what is there.
const PATHS: [(&str, &str); 8] = [
    ("/v1/check", "POST: a decision about a request"),
    ("/v1/openapi.json", "the description of the interface"),
    ("/healthz", "whether the server lives"),
    ("/readyz", "whether it is ready, and what its operator should know"),
    ("/metrics", "metrics in the format of Prometheus"),
    ("/console", "the console for operators, with an admin token"),
    ("/admin/v1/limits", "the limits and their overrides, with an admin token"),
    ("/json", "POST: the JSON interface of envoyproxy/ratelimit"),
];

/// How a client wants to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootForm {
    Page,
    Json,
}

impl RootForm {
    /// Browsers say that they read pages. Everything else gets JSON.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if accept.contains("text/html") { RootForm::Page } else { RootForm::Json }
    }
}

/// The response.
pub(super) fn root(form: RootForm) -> Response<Full<Bytes>> {
    let version = env!("CARGO_PKG_VERSION");
    let (kind, text) = match form {
        RootForm::Json => {
            let paths: serde_json::Map<String, serde_json::Value> =
                PATHS.iter().map(|(path, what)| ((*path).to_owned(), (*what).into())).collect();
            let document = serde_json::json!({
                "service": "tollgate", "version": version, "documentation": DOCUMENTATION, "paths": paths,
            });
            ("application/json", document.to_string())
        }
        RootForm::Page => ("text/html; charset=utf-8", page(version)),
    };
    response(StatusCode::OK, Some(HeaderValue::from_static(kind)), text.into_bytes())
}

fn page(version: &str) -> String {
    let rows: String = PATHS
        .iter()
        .map(|(path, what)| {
            // A link would ask with GET, which these paths refuse.
            let name = match what.starts_with("POST") {
                true => format!("<code>{path}</code>"),
                false => format!("<a href=\"{path}\"><code>{path}</code></a>"),
            };
            format!("<tr><td>{name}</td><td>{what}</td></tr>\n")
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Tollgate</title></head>\n<body>\n\
         <h1>Tollgate {version}</h1>\n<p>A server for rate-limiting decisions. Documentation: {DOCUMENTATION}. \
         <a href=\"/console\">The console</a> shows what it does.</p>\n<table>\n{rows}</table>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A browser gets a page, and every other client JSON.
    #[test]
    fn the_form_follows_accept() {
        let mut headers = HeaderMap::new();
        assert_eq!(RootForm::of(&headers), RootForm::Json);
        headers.insert(ACCEPT, HeaderValue::from_static("text/html,application/xhtml+xml;q=0.9"));
        assert_eq!(RootForm::of(&headers), RootForm::Page);
        let kind = |form| root(form).headers().get("content-type").unwrap().to_str().unwrap().to_owned();
        assert_eq!(kind(RootForm::Json), "application/json");
        assert_eq!(kind(RootForm::Page), "text/html; charset=utf-8");
    }
}
