//! The target of a redirection.

use crate::settings::Host;

/// The node named in `3999 10.0.0.7:6381`. A node that does not know its own name leaves it out; the sender's name is
/// used instead.
pub(crate) fn redirect_target(details: &str, sender: &Host) -> Option<Host> {
    let target = details.split(' ').nth(1)?;
    let (name, port) = target.rsplit_once(':')?;
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let name = if name.is_empty() || name == "?" { &sender.name } else { name };
    let port = port.parse().ok().filter(|&port: &u16| port > 0)?;
    Some(Host { name: name.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets may be IPv4 or IPv6 addresses, names, or lack a name.
    #[test]
    fn redirect_targets_are_parsed() {
        let sender = Host { name: "here".to_owned(), port: 1 };
        let target = |details: &str| redirect_target(details, &sender).map(|host| host.to_string());
        assert_eq!(target("3999 127.0.0.1:6381").as_deref(), Some("127.0.0.1:6381"));
        assert_eq!(target("3999 ::1:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(target("3999 cache.internal:6381").as_deref(), Some("cache.internal:6381"));
        assert_eq!(target("3999 :6381").as_deref(), Some("here:6381"));
        assert_eq!(target("3999"), None);
        assert_eq!(target("3999 h:0"), None);
        assert_eq!(target("3999 h:x"), None);
    }
}
