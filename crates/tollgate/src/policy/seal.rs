//! Credentials in a policy. Values of attributes that hold credentials are stored as digests, so that plain text and digests
//! mean the same, and no sentence, finding or copy of the policy shows a credential. [`super::compared`] compares requests
//! with them.

use crate::credential::{CredentialAttributes, CredentialDigest};
use crate::policy::condition::Condition;
use crate::policy::finding::Problem;
use crate::policy::limit::{ANY, Cost, Limit, TIER_SEPARATOR};
use crate::policy::text::TextMap;

/// A problem with a part of a limit, by its field.
pub(crate) type Faults = Vec<(String, Problem)>;

impl Limit {
    /// Replaces the credentials that its quotas and its cost name by their digests. Its conditions are sealed where they are read.
    pub(crate) fn seal(&mut self, credentials: &CredentialAttributes) -> Faults {
        let mut faults = Faults::new();
        let quotas = &mut self.quotas;
        if let Some(by) = self.by.first().filter(|by| credentials.contains(by.name())) {
            let is_pattern = quotas.overrides.keys().any(|name| name.contains('*'));
            faults.extend(is_pattern.then(|| ("overrides".to_owned(), text_unknown(by.name()))));
            let sealed = seal_table(&mut quotas.overrides, digest_of);
            faults.extend(sealed.map(|problem| ("overrides".to_owned(), problem)));
        }
        let secret: Vec<bool> = quotas.tier_by.iter().map(|name| credentials.contains(name)).collect();
        for (at, name) in quotas.tier_by.iter().enumerate().filter(|(at, _)| secret.get(*at) == Some(&true)) {
            let part = |tier: &str| tier.split(TIER_SEPARATOR).nth(at).unwrap_or_default().to_owned();
            let is_pattern = |tier: &str| part(tier) != ANY && part(tier).contains('*');
            let is_pattern = quotas.tiers.keys().any(|tier| is_pattern(tier));
            faults.extend(is_pattern.then(|| ("tiers".to_owned(), text_unknown(name))));
        }
        if secret.contains(&true) {
            let sealed = seal_table(&mut quotas.tiers, |name| seal_tier(name, &secret));
            faults.extend(sealed.map(|problem| ("tiers".to_owned(), problem)));
        }
        if let Cost::Computed(expression) = &mut self.cost
            && let Err(problem) = expression.seal(credentials)
        {
            faults.push(("cost".to_owned(), problem));
        }
        faults
    }
}

fn digest_of(value: &str) -> String {
    CredentialDigest::of_value(value).to_string()
}

/// The name of a tier with digests for those of its values that are credentials.
fn seal_tier(name: &str, secret: &[bool]) -> String {
    let part = |(part, is_secret): (&str, &bool)| match part {
        ANY => part.to_owned(),
        _ if *is_secret => digest_of(part),
        _ => part.to_owned(),
    };
    let parts: Vec<String> = name.split(TIER_SEPARATOR).zip(secret).map(part).collect();
    parts.join(&TIER_SEPARATOR.to_string())
}

/// Replaces the names of a table by their digests. Two names of the same credential are an error.
fn seal_table<V: Clone>(table: &mut TextMap<V>, seal: impl Fn(&str) -> String) -> Option<Problem> {
    let before = table.len();
    *table = table.drain().map(|(name, value)| (seal(&name).into(), value)).collect();
    (table.len() < before).then(|| {
        Problem::new("one credential is named twice, as it is and as its digest", "each credential once")
    })
}

impl Condition {
    /// Replaces the credentials that it names by their digests.
    ///
    /// # Errors
    /// It uses a part of the text of a credential, but only the digest is known.
    pub(crate) fn seal(&mut self, credentials: &CredentialAttributes) -> Result<(), Problem> {
        match self {
            Condition::OneOf { name, choices, .. } if credentials.contains(name) => {
                if choices.globs().iter().any(|glob| !glob.is_any()) {
                    return Err(text_unknown(name));
                }
                choices.replace_values(digest_of);
                Ok(())
            }
            Condition::OneOf { .. } => Ok(()),
            Condition::Holds(expression) => expression.seal(credentials),
        }
    }
}

/// The problem of a condition on a part of a credential.
pub(crate) fn text_unknown(name: &str) -> Problem {
    let message =
        format!("{name} is a credential, of which only the hash is known, so no pattern can match it");
    let accepted = "whole values, as text or as sha256:…; for a group of callers, an attribute that the callers file gives them, such as plan";
    Problem::new(message, accepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::policy::compared::Replaced;
    use crate::request::CheckRequest;

    const POLICY: &[u8] = b"limits:
  - {name: per-key, by: [api_key], rate: 1/h, overrides: {vip: 100/h}}
  - {name: listed, when: {api_key: [k1, k2]}, rate: 7/h}
  - {name: said, when: \"api_key == 'k3' || api_key in ['k4', 'k5']\", rate: 8/h}
  - {name: unsaid, when: \"has(api_key) && api_key != 'k6'\", rate: 9/h}
";

    fn met(policy: &Policy, key: &str) -> Vec<(String, u64)> {
        let request = CheckRequest::new().with("api_key", key).unwrap();
        let met = policy.matches(&request).unwrap();
        let limit = |number: u32| &policy.limits()[number as usize];
        met.iter()
            .map(|met| {
                (
                    limit(met.limit).name().to_owned(),
                    limit(met.limit).quota(met.quota).map_or(0, |quota| quota.capacity()),
                )
            })
            .collect()
    }

    /// A plain credential in a policy matches the plain value and its digest, in every kind of condition.
    #[test]
    fn plain_values_and_digests_meet_the_same_limits() {
        let (policy, warnings) = Policy::compile("p", POLICY).unwrap();
        assert!(warnings.is_empty(), "{warnings}");
        let named = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        for (key, capacity, others) in [
            ("vip", 100, &["unsaid"][..]),
            ("k1", 1, &["listed", "unsaid"]),
            ("k3", 1, &["said", "unsaid"]),
            ("k5", 1, &["said", "unsaid"]),
            ("k6", 1, &[]),
            ("other", 1, &["unsaid"]),
        ] {
            let plain = met(&policy, key);
            assert_eq!(plain[0], ("per-key".to_owned(), capacity), "{key}");
            assert_eq!(
                plain.iter().skip(1).map(|(name, _)| name.clone()).collect::<Vec<_>>(),
                named(others),
                "{key}"
            );
            assert_eq!(met(&policy, CredentialDigest::of(key).as_str()), plain, "{key}");
        }
    }

    /// Digests in a policy mean the same as the plain text.
    #[test]
    fn digests_may_be_written() {
        let text = format!(
            "limits: [{{name: a, by: [api_key], rate: 1/h, overrides: {{'{}': 100/h}}}}]",
            CredentialDigest::of("vip")
        );
        let (policy, _) = Policy::compile("p", text.as_bytes()).unwrap();
        assert_eq!(met(&policy, "vip"), [("a".to_owned(), 100)]);
        let twice = text.replace("overrides: {", "overrides: {vip: 9/h, ");
        let findings = Policy::compile("p", twice.as_bytes()).unwrap_err().to_string();
        assert!(findings.contains("named twice"), "{findings}");
    }

    /// No sentence and no finding of a policy contains the text of a credential.
    #[test]
    fn no_sentence_shows_a_credential() {
        let policy = String::from_utf8_lossy(POLICY)
            .replace("vip", "s3cret")
            .replace("k1", "s3cret")
            .replace("k3", "s3cret");
        let (good, _) = Policy::compile("p", policy.as_bytes()).unwrap();
        let request = CheckRequest::new().with("api_key", "other").unwrap();
        let mut digests = Replaced::new();
        let request = good.compared(&request, &mut digests).unwrap();
        let unmet = good.limits().iter().map(|limit| format!("{:?}", limit.unmet(&request)));
        let shown = good.sentences().join("\n") + &unmet.collect::<String>() + &format!("{good:?}");
        assert!(shown.contains("sha256:") && !shown.contains("s3cret"), "{shown}");
        for wrong in ["overrides: {s3cret: 100/x}", "overrides: {s3cret: 1/h, s3cret: 2/h}"] {
            let text = format!("limits: [{{name: a, by: [api_key], rate: 1/h, {wrong}}}]");
            let findings = Policy::compile("p", text.as_bytes()).unwrap_err().to_string();
            assert!(!findings.contains("s3cret"), "{findings}");
        }
    }

    /// Only the digest of a credential is known, so a condition on a part of it is refused with an alternative.
    #[test]
    fn patterns_of_credentials_are_refused() {
        for when in [
            "{api_key: 'test-*'}",
            "\"api_key.startsWith('test-')\"",
            "\"api_key.matches('^t')\"",
            "\"api_key == tenant\"",
            "\"size(api_key) > 3\"",
            "\"api_key in tenants\"",
            "\"api_key == 42\"",
            "\"['a'].exists(x, x == api_key)\"",
        ] {
            let text = format!("limits: [{{name: a, when: {when}, rate: 1/h}}]");
            let findings = Policy::compile("p", text.as_bytes()).unwrap_err().to_string();
            assert!(
                findings.contains("only the hash is known") && findings.contains("callers file"),
                "{when}: {findings}"
            );
        }
        for fields in
            ["by: [api_key], overrides: {'k*': 5/h}", "by: [t], tier_by: api_key, tiers: {'k*': 5/h}"]
        {
            let text = format!("limits: [{{name: a, rate: 1/h, {fields}}}]");
            let findings = Policy::compile("p", text.as_bytes()).unwrap_err().to_string();
            assert!(findings.contains("only the hash is known"), "{fields}: {findings}");
        }
        for when in
            ["{api_key: '*'}", "\"has(api_key)\"", "\"!has(api_key)\"", "\"api_key == 'a' && path == '/'\""]
        {
            let text = format!("limits: [{{name: a, when: {when}, rate: 1/h}}]");
            assert!(Policy::compile("p", text.as_bytes()).is_ok(), "{when}");
        }
    }
}
