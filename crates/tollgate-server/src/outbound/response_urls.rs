//! The links in a provider's answer, rewritten so that the pages that they name are asked for through the proxy as well.

use std::borrow::Cow;

use http::header::{LINK, LOCATION};
use http::{HeaderMap, HeaderValue};

use super::document::ProviderPlan;

/// A prefix of a link ends before the rest of its path, its query or its fragment.
const AFTER: [char; 3] = ['/', '?', '#'];

/// Rewrites all links of an answer. `public` is the origin of the proxy as the client names it, such as
/// `http://127.0.0.1:8090`.
pub(super) fn rewrite(headers: &mut HeaderMap, plan: &ProviderPlan, public: Option<&str>) {
    for (name, value) in headers.iter_mut() {
        let Some(text) = value.to_str().ok().filter(|_| *name == LINK || *name == LOCATION) else { continue };
        let ours = if *name == LOCATION {
            target(text, plan, public).into_owned()
        } else {
            targets(text, plan, public)
        };
        if let Ok(ours) = HeaderValue::try_from(ours) {
            *value = ours;
        }
    }
}

/// A field `Link` with the target of each of its links rewritten.
fn targets(field: &str, plan: &ProviderPlan, public: Option<&str>) -> String {
    let mut ours = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, (link, after))) =
        rest.split_once('<').and_then(|(before, rest)| Some((before, rest.split_once('>')?)))
    {
        ours.push_str(before);
        ours.push('<');
        ours.push_str(&target(link, plan, public));
        ours.push('>');
        rest = after;
    }
    ours + rest
}

/// A link: through the proxy if it leads below the provider's URL, otherwise to where it leads. A relative one whose path
/// does not begin with a slash leads to the same place at the proxy.
fn target<'l>(link: &'l str, plan: &ProviderPlan, public: Option<&str>) -> Cow<'l, str> {
    let absolute = match link.strip_prefix("//") {
        Some(rest) => {
            let scheme = plan.origin.split_once("//").map_or("", |(scheme, _)| scheme);
            Cow::Owned(format!("{scheme}//{rest}"))
        }
        None => Cow::Borrowed(link),
    };
    let is_path = absolute.starts_with('/');
    let path = if is_path { Some(&*absolute) } else { after(&absolute, &plan.origin) };
    let ours = path.and_then(|path| after(path, &plan.base));
    match (ours, public.filter(|_| !is_path)) {
        (Some(rest), Some(public)) => Cow::Owned(format!("{public}{}{rest}", plan.prefix)),
        (Some(rest), None) => Cow::Owned(format!("{}{rest}", plan.prefix)),
        // Elsewhere at the provider, where the proxy does not lead.
        (None, _) if is_path => Cow::Owned(format!("{}{absolute}", plan.origin)),
        (None, _) => absolute,
    }
}

/// The rest of a link below a prefix.
fn after<'l>(link: &'l str, prefix: &str) -> Option<&'l str> {
    link.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with(AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::document::tests::plan_of;

    const HERE: Option<&str> = Some("http://here:8090");

    /// Regression: of several fields `Link` one remained, and a path in `Location` lost the prefix of its provider.
    #[test]
    fn every_link_leads_through_the_proxy() {
        let plan = plan_of("{url: 'https://api.test/base', prefix: /a}");
        let mut headers = HeaderMap::new();
        for link in [
            r#"<https://api.test/base/x?page=2>; rel="next", </base?page=9>; rel="last""#,
            r#"<https://docs.test/x>; rel="help""#,
        ] {
            headers.append(LINK, link.parse().unwrap());
        }
        headers.insert(LOCATION, "/base/jobs/7".parse().unwrap());
        rewrite(&mut headers, &plan, HERE);
        let links: Vec<&str> = headers.get_all(LINK).iter().map(|link| link.to_str().unwrap()).collect();
        let expected = [
            r#"<http://here:8090/a/x?page=2>; rel="next", </a?page=9>; rel="last""#,
            r#"<https://docs.test/x>; rel="help""#,
        ];
        assert_eq!((links, headers[LOCATION].to_str().unwrap()), (expected.to_vec(), "/a/jobs/7"));
    }

    /// A link keeps its place: other hosts, other paths of the provider, and relative paths.
    #[test]
    fn a_link_leads_where_it_led() {
        let plan = plan_of("{url: 'https://api.test/base', prefix: /a}");
        let cases = [
            ("https://api.test/base", "http://here:8090/a"),
            ("//api.test/base/x#y", "http://here:8090/a/x#y"),
            ("https://api.test/baseline", "https://api.test/baseline"),
            ("https://api.test.evil/base/x", "https://api.test.evil/base/x"),
            ("//other.test/x", "https://other.test/x"),
            ("/login", "https://api.test/login"),
            ("page/2", "page/2"),
            ("?page=2", "?page=2"),
        ];
        for (theirs, ours) in cases {
            assert_eq!(target(theirs, &plan, HERE), ours, "{theirs}");
        }
        assert_eq!(target("https://api.test/base/x", &plan, None), "/a/x");
        let all = plan_of("{url: 'https://api.test', prefix: /}");
        assert_eq!(target("https://api.test/x", &all, HERE), "http://here:8090/x");
        assert_eq!(target("/x", &all, HERE), "/x");
    }
}
