//! The presets compile, and docs/outbound-providers.md says what they mean.

use tollgate::{CheckRequest, Engine, ManualClock, Policy};
use tollgate_outbound::Preset;

const PAGE: &str = include_str!("../../../../docs/outbound-providers.md");

/// The sentences of each preset's policy stand on the page, and no others.
#[test]
fn the_page_says_what_each_preset_means() {
    let mut expected = String::new();
    let mut on_page = String::new();
    for preset in Preset::ALL {
        let name = preset.name();
        let policy: Policy = preset.policy_text().parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(policy.warnings().to_string().is_empty(), "{name}: {}", policy.warnings());
        let fence = format!("```text {name}\n");
        expected += &format!("{fence}{}\n```\n", policy.sentences().join("\n"));
        let block = PAGE.split(&fence).nth(1).map_or("", |rest| rest.split("\n```").next().unwrap());
        on_page += &format!("{fence}{block}\n```\n");
    }
    assert!(on_page == expected, "the page should have\n{expected}");
    assert_eq!(PAGE.matches("```text ").count(), Preset::ALL.len());
}

/// Each preset names where its numbers are from.
#[test]
fn each_preset_names_its_source() {
    for preset in Preset::ALL {
        assert!(preset.policy_text().contains("# Source"), "{}", preset.name());
        assert!(preset.policy_text().contains("202"), "{} has no date", preset.name());
        assert_eq!(Preset::named(preset.name()).map(|found| found.name()), Some(preset.name()));
    }
}

/// A change costs five points of GitHub's secondary limit, a read one.
#[test]
fn a_change_at_github_costs_five_points() {
    let left = |method: &str| {
        let policy = Preset::named("github").unwrap().policy_text().parse().unwrap();
        let engine = Engine::builder().policy(policy).clock(ManualClock::new().clock()).build();
        let request = CheckRequest::new()
            .with("host", "api.github.com")
            .and_then(|request| request.with("api_key", "k"))
            .and_then(|request| request.with("route", "/repos/{owner}/{repo}/issues"))
            .and_then(|request| request.with("method", method))
            .unwrap();
        let decision = engine.try_check(&request, engine.now()).unwrap();
        let remaining =
            |name| decision.limits().find(|limit| limit.limit.name() == name).map(|l| l.outcome.remaining);
        (remaining("github-core-requests"), remaining("github-points"), remaining("github-content-minute"))
    };
    assert_eq!(left("GET"), (Some(4_999), Some(899), None));
    assert_eq!(left("POST"), (Some(4_999), Some(895), Some(79)));
}
