//! Accepted and rejected URLs. Nothing secret is ever printed.

use super::*;

fn topology(text: &str) -> String {
    text.parse::<Settings>().unwrap().topology().to_string()
}

/// Every topology has its URL.
#[test]
fn every_topology_has_its_url() {
    assert_eq!(topology("redis://cache"), "redis://cache:6379");
    assert_eq!(topology("redis://[::1]:7000/3"), "redis://[::1]:7000");
    assert_eq!(topology("rediss://cache.internal:6380/"), "redis://cache.internal:6380");
    assert_eq!(topology("redis-cluster://a,b:7001,10.0.0.3"), "redis-cluster://a:6379,b:7001,10.0.0.3:6379");
    assert_eq!(topology("redis-sentinel://s1,s2:5000/main"), "redis-sentinel://s1:26379,s2:5000/main");
    assert_eq!("redis-sentinel://s1/main/4".parse::<Settings>().unwrap().database, 4);
    assert_eq!("redis://h/7".parse::<Settings>().unwrap().database, 7);
    assert!("rediss-cluster://a".parse::<Settings>().unwrap().is_encrypted());
    assert!(!"redis-cluster://a".parse::<Settings>().unwrap().is_encrypted());
}

/// A user and a password are percent-decoded, and the user may be missing.
#[test]
fn logins_are_percent_decoded() {
    let login = |text: &str| {
        let login = text.parse::<Settings>().unwrap().login.unwrap();
        (login.user, login.password.last_read())
    };
    assert_eq!(login("redis://toll:p%40s%3As@h"), (Some("toll".to_owned()), "p@s:s".to_owned()));
    assert_eq!(login("redis://:word@h"), (None, "word".to_owned()));
    assert_eq!("redis://:%zz@h".parse::<Settings>().unwrap_err(), SettingsError::Login);
    assert_eq!("redis://word@h".parse::<Settings>().unwrap_err(), SettingsError::Login);
}

/// Rejected URLs list what would be accepted.
#[test]
fn rejected_urls_list_what_is_accepted() {
    let message = |text: &str| text.parse::<Settings>().unwrap_err().to_string();
    assert!(message("http://h").contains("begins with `http`"));
    assert!(message("redis:/secret").ends_with("this one has no `://`"));
    assert!(message("cache:6379").contains("begins with redis://"));
    assert!(message("redis://").contains("names no host"));
    assert!(message("redis://h:0").contains("`h` with what follows it is not a host"));
    assert!(message("redis://h:99999").contains("not a host"));
    assert!(message("redis://[::1").contains("not a host"));
    assert!(message("redis://a,b").contains("redis-cluster://"));
    assert!(message("redis://h/x").contains("number of a database"));
    assert!(message("redis-cluster://h/1").contains("only database 0"));
    assert!(message("redis-sentinel://h").contains("/mymaster"));
    assert!(message("redis://h?x=1").contains("`?`"));
}

/// Numbers and files are checked when they are set.
#[test]
fn options_have_bounds() {
    let settings = || "redis://h".parse::<Settings>().unwrap();
    assert!(settings().deadline(Duration::from_millis(51)).is_err());
    assert!(settings().deadline(Duration::from_micros(900)).is_err());
    assert!(settings().deadline(Duration::from_millis(50)).is_ok());
    assert!(settings().in_flight(0).is_err());
    assert!(settings().nodes(Nodes::Fixed(0)).is_err());
    assert!(settings().secret(b"short").is_err());
    assert_eq!(settings().tls(TlsFiles::default()).unwrap_err(), SettingsError::TlsUnused);
    let half = TlsFiles { key: Some("key.pem".into()), ..TlsFiles::default() };
    assert_eq!("rediss://h".parse::<Settings>().unwrap().tls(half).unwrap_err(), SettingsError::TlsHalf);
    assert!(settings().sentinel_login(None, "x").is_err());
}

/// Neither settings nor errors print a password or the secret.
#[test]
fn secrets_are_never_printed() {
    let settings =
        "redis://user:hunter2@h".parse::<Settings>().unwrap().secret(b"correct horse battery").unwrap();
    let shown = format!("{settings:?} {}", settings.topology());
    assert!(!shown.contains("hunter2") && !shown.contains("horse") && !shown.contains("user"), "{shown}");
    let errors = [
        "hunter2@h",
        "redis:hunter2@h",
        "redis://:hunter2@h:0",
        "redis://:hunter2@h?x",
        "redis://hunter2@h",
        "redis://user:hunter2",
    ];
    for text in errors {
        let message = text.parse::<Settings>().unwrap_err().to_string();
        assert!(!message.contains("hunter2"), "{message}");
    }
}

/// An unencrypted URL to another machine is exposed.
#[test]
fn unencrypted_remote_urls_are_exposed() {
    assert!("redis://10.0.0.1".parse::<Settings>().unwrap().is_exposed());
    assert!(!"redis://127.0.0.1".parse::<Settings>().unwrap().is_exposed());
    assert!(!"redis://localhost".parse::<Settings>().unwrap().is_exposed());
    assert!(!"rediss://10.0.0.1".parse::<Settings>().unwrap().is_exposed());
    assert!("redis-cluster://127.0.0.1,10.0.0.1".parse::<Settings>().unwrap().is_exposed());
}
