//! Spellings of requests, and what is refused.

use super::*;

/// Each name is there once, in lowercase, and is found; so are families.
#[test]
fn every_name_is_found() {
    let all = FIELDS.iter().flat_map(|fields| fields.names.iter().map(|name| (*name, fields.treatment)));
    for (name, wanted) in all.clone() {
        let name = name.strip_suffix('*').unwrap_or(name);
        assert_eq!((treatment(name), is_plain(name)), (Some(wanted), true), "{name}");
        assert_eq!(plain(&name.replace('-', "_")), name);
        assert_eq!(name.to_ascii_lowercase(), name);
    }
    let mut names: Vec<&str> = all.map(|(name, _)| name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(treatment("x-forwarded-user"), Some(Treatment::TrustedOnly));
    assert_eq!((treatment("accept"), treatment("x-forwardedx")), (None, None));
    assert_eq!(plain("X.Forwarded!For_x"), "x-forwarded-for-x");
}

/// Unknown methods stay, in capitals; text that is not a method is rejected.
#[test]
fn methods() {
    for method in ["GET", "M-SEARCH", "PURGE", "X2"] {
        assert!(is_method(method), "{method}");
    }
    for method in ["get", "Get", "POSt", "", "POST GET", "POST,GET", "P\u{d6}ST"] {
        assert!(!is_method(method), "{method}");
    }
}
