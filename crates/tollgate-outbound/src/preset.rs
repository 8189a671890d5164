//! How well-known providers count: a policy for each, and settings of the client. The policies are files to copy and
//! edit; each names the sources of its numbers.

use std::time::Duration;

use crate::learned::Replenish;
use crate::settings::Settings;

/// How long GitHub and Slack want to be left alone after a refusal that does not say so.
const MINUTE: Duration = Duration::from_secs(60);

/// How one provider counts.
///
/// ```
/// use tollgate::Engine;
/// use tollgate_outbound::{Outbound, Preset};
/// let github = Preset::named("github").expect("a preset");
/// let engine = Engine::builder().policy(github.policy_text().parse()?).build();
/// let outbound = Outbound::new(engine, github.settings());
/// # drop(outbound);
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    name: &'static str,
    policy: &'static str,
    replenish: Replenish,
    freeze_min: Duration,
    buckets: Buckets,
    identity: &'static [&'static str],
}

/// The attributes by which providers count calls apart, besides the host.
const BY_KEY: &[&str] = &["api_key"];
const BY_MODEL: &[&str] = &["api_key", "model"];
const BY_ROUTE: &[&str] = &["api_key", "route"];

/// Whether a provider names a bucket for each route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buckets {
    Known,
    Discovered,
}

impl Preset {
    /// All presets, by name.
    pub const ALL: [Preset; 8] = [
        Self { identity: BY_MODEL, ..Self::steady("anthropic", include_str!("preset/anthropic.yaml")) },
        Self {
            buckets: Buckets::Discovered,
            replenish: Replenish::AtReset,
            ..Self::steady("discord", include_str!("preset/discord.yaml"))
        },
        Self {
            freeze_min: MINUTE,
            replenish: Replenish::AtReset,
            ..Self::steady("github", include_str!("preset/github.yaml"))
        },
        Self { identity: BY_MODEL, ..Self::steady("openai", include_str!("preset/openai.yaml")) },
        Self::steady("shopify", include_str!("preset/shopify.yaml")),
        Self::steady("shopify-graphql", include_str!("preset/shopify-graphql.yaml")),
        Self {
            freeze_min: MINUTE,
            replenish: Replenish::AtReset,
            identity: BY_ROUTE,
            ..Self::steady("slack", include_str!("preset/slack.yaml"))
        },
        Self { replenish: Replenish::AtReset, ..Self::steady("stripe", include_str!("preset/stripe.yaml")) },
    ];

    const fn steady(name: &'static str, policy: &'static str) -> Self {
        let (freeze_min, buckets) = (Duration::ZERO, Buckets::Known);
        Self { name, policy, replenish: Replenish::Steadily, freeze_min, buckets, identity: BY_KEY }
    }

    /// The preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Its policy as text, to copy and edit.
    #[must_use]
    pub const fn policy_text(&self) -> &'static str {
        self.policy
    }

    /// Settings for a client of this provider.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            replenish: self.replenish,
            freeze_min: self.freeze_min,
            discovers_buckets: self.buckets == Buckets::Discovered,
            identity: self.identity.iter().map(|name| (*name).to_owned()).collect(),
            ..Settings::default()
        }
    }
}
