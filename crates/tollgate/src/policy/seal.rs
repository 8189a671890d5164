//! Credentials in a policy. Values of attributes that hold credentials are stored as digests, so that plain text and digests
//! mean the same, and no sentence, finding or copy of the policy shows a credential. [`super::compared`] compares requests
//! with them.

use crate::credential::{CredentialAttributes, CredentialDigest};
use crate::policy::condition::Condition;
use crate::policy::finding::{Problem, quoted};
use crate::policy::limit::{ANY, Cost, Limit, TIER_SEPARATOR};
use crate::policy::pattern;
use crate::policy::text::TextMap;

/// A problem with a part of a limit, by its field.
pub(crate) type Faults = Vec<(String, Problem)>;

impl Limit {
    /// Replaces the credentials that its quotas and its cost name by their digests. Its conditions are sealed where they are read.
    pub(crate) fn seal(&mut self, credentials: &CredentialAttributes) -> Faults {
        let mut faults = Faults::new();
        let quotas = &mut self.quotas;
        if let Some(by) = self.by.first().filter(|by| credentials.contains(by.name())) {
            let wrong =
                quotas.overrides.keys().filter_map(|text| value_problem(credentials, by.name(), text));
            faults.extend(wrong.map(|problem| ("overrides".to_owned(), problem)));
            let sealed = seal_table(&mut quotas.overrides, |text| credentials.kept(by.name(), text));
            faults.extend(sealed.map(|problem| ("overrides".to_owned(), problem)));
        }
        if quotas.tier_by.iter().any(|name| credentials.contains(name)) {
            let tier_by = quotas.tier_by.clone();
            let has_any = tier_by.len() > 1;
            for (part, name) in quotas.tiers.keys().flat_map(|tier| tier.split(TIER_SEPARATOR).zip(&tier_by))
            {
                let is_meant = credentials.contains(name) && !(has_any && part == ANY);
                let problem = value_problem(credentials, name, part).filter(|_| is_meant);
                faults.extend(problem.map(|problem| ("tiers".to_owned(), problem)));
            }
            let sealed = seal_table(&mut quotas.tiers, |tier| seal_tier(tier, &tier_by, credentials));
            faults.extend(sealed.map(|problem| ("tiers".to_owned(), problem)));
        }
        faults.dedup();
        if let Cost::Computed(expression) = &mut self.cost
            && let Err(problem) = expression.seal(credentials)
        {
            faults.push(("cost".to_owned(), problem));
        }
        faults
    }
}

/// The name of a tier with digests for those of its values that are credentials.
fn seal_tier(tier: &str, tier_by: &[String], credentials: &CredentialAttributes) -> String {
    let part = |(part, name): (&str, &String)| match part {
        ANY => part.to_owned(),
        _ if credentials.contains(name) => credentials.kept(name, part),
        _ => part.to_owned(),
    };
    let parts: Vec<String> = tier.split(TIER_SEPARATOR).zip(tier_by).map(part).collect();
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
                if let Some(problem) =
                    choices.values().iter().find_map(|text| value_problem(credentials, name, text))
                {
                    return Err(problem);
                }
                choices.replace_values(|text| credentials.kept(name, text));
                Ok(())
            }
            Condition::OneOf { .. } => Ok(()),
            Condition::Holds(expression) => expression.seal(credentials),
        }
    }
}

/// The scheme before a credential in `Authorization`, which is no part of it.
const SCHEMES: [&str; 4] = ["bearer ", "basic ", "token ", "apikey "];

/// The problem with a value of a credential attribute that no request has. The value may be a credential and is not shown.
pub(crate) fn value_problem(credentials: &CredentialAttributes, name: &str, text: &str) -> Option<Problem> {
    let small = text.to_ascii_lowercase();
    let digest = CredentialDigest::of(text);
    let meant = format!("{digest} if the text is meant as it stands");
    let values = format!(
        "a whole credential, [k1, k2] for several, `{{ not: ... }}` of these as a condition, or {meant}"
    );
    if text.is_empty() {
        return Some(Problem::new(
            "an empty text is no credential",
            format!("{name}: \"*\" for any credential"),
        ));
    }
    if text.contains('*') {
        return Some(text_unknown(name));
    }
    if let Some(one) = credentials.client(name, text) {
        let message = format!("{} is not how {} holds an address", quoted(text), quoted(name));
        return Some(Problem::new(message, one));
    }
    if CredentialDigest::parse(text).is_some() || credentials.is_address(name, text) {
        return None;
    }
    if CredentialDigest::is_spoilt(text) {
        let message = "a value begins as a digest does, and is none";
        let accepted = "sha256: in small letters with 32 or 64 hexadecimal digits";
        return Some(Problem::new(message, accepted));
    }
    if SCHEMES.iter().any(|scheme| small.starts_with(scheme)) {
        let accepted = format!("the credential alone, without the word before it, or {meant}");
        return Some(Problem::new("a value has the scheme of Authorization before it", accepted));
    }
    let why = pattern::of_any_kind(name, text)?.message;
    let why = why.strip_prefix(quoted(text).as_str()).unwrap_or(" looks like a pattern");
    Some(Problem::new(format!("a value of {}{why}", quoted(name)), values))
}

/// The problem of a condition on a part of a credential.
pub(crate) fn text_unknown(name: &str) -> Problem {
    let message =
        format!("{name} is a credential, of which only the hash is known, so no pattern can match it");
    let accepted = "whole values, as text or as sha256:...; for a group of callers, an attribute that the callers file gives them, such as plan";
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
        let policy = Policy::compile("p", POLICY).unwrap();
        let warnings = policy.warnings();
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
        let policy = Policy::compile("p", text.as_bytes()).unwrap();
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
        let good = Policy::compile("p", policy.as_bytes()).unwrap();
        let request = CheckRequest::new().with("api_key", "other").unwrap();
        let mut digests = Replaced::new();
        let request = good.compared(request.first(), &mut digests).unwrap();
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
