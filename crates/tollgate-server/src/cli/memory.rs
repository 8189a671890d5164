//! How much memory counters may take by default.

/// Enough for a million callers of the example policy; see docs/operate.md. Memory is taken only as counters need it.
pub(crate) const MEMORY_DEFAULT: &str = "512MiB";

#[cfg(test)]
mod tests {
    use tollgate::{CheckRequest, Engine, MemoryStore, Policy, Source, Timestamp};

    use super::MEMORY_DEFAULT;
    use crate::cli::value;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    /// The bytes that docs/operate.md gives for a caller of the example policy.
    const CALLER_BYTES: u64 = 310;

    /// The bug: with the built-in policy and the default memory, 37,000 callers were too many. A tenth of the default
    /// memory holds a tenth of a million callers, each with its own key and tenant, and every counter is exact.
    #[test]
    fn the_default_memory_holds_a_million_callers_of_the_example() {
        const CALLERS: u64 = 100_000;
        let policy = Policy::compile("example", tollgate::policy::EXAMPLE.as_bytes()).unwrap();
        let store = MemoryStore::new(value::size(MEMORY_DEFAULT).unwrap() / 10, NOW);
        let engine = Engine::builder().policy(policy).store(store).build();
        for caller in 0..CALLERS {
            let (key, tenant) = (format!("key-{caller}"), format!("tenant-{caller}"));
            let request = CheckRequest::new().with("api_key", &key).unwrap().with("tenant", &tenant).unwrap();
            let decision = engine.try_check(&request, NOW).unwrap();
            let is_exact = decision.limits().all(|status| status.source == Source::Exact);
            assert!(decision.is_allowed() && is_exact, "caller {caller}: {:?}", engine.store().usage(NOW));
        }
        let usage = engine.store().usage(NOW);
        assert_eq!(usage.overflow_keys, 0);
        assert!(usage.bytes <= CALLER_BYTES * CALLERS, "{} bytes a caller", usage.bytes / CALLERS);
        assert!(include_str!("../../../../docs/operate.md").contains(&format!("{CALLER_BYTES} bytes")));
    }
}
