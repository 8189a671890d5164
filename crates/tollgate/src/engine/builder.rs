//! Builds an engine: its policy first, then its store, clock and secret, each with a default.

use std::path::Path;
use std::sync::Arc;

use super::Engine;
#[cfg(feature = "reload")]
use super::reload::{FileWatch, PolicyFile, Reload};
use crate::active::ActivePolicy;
use crate::clock::Clock;
use crate::key::Secret;
use crate::memory::{CAPACITY_BYTES_DEFAULT, MemoryStore};
use crate::policy::{Policy, PolicyError, read_file};
use crate::store::Store;
use crate::time::Timestamp;

/// An engine that has no policy yet: [`Engine::builder`] returns it.
#[must_use]
#[derive(Debug)]
pub struct WithoutPolicy(pub(super) ());

impl WithoutPolicy {
    /// Decides by this policy.
    pub fn policy(self, policy: Policy) -> EngineBuilder {
        let create = |bytes, now: Timestamp| MemoryStore::new(bytes, now.decidable());
        EngineBuilder {
            policy,
            store: StoreSource::Create { bytes: CAPACITY_BYTES_DEFAULT, create },
            clock: Clock::precise(),
            secret: None,
            #[cfg(feature = "reload")]
            file: None,
        }
    }

    /// Decides by the policy in a file. With the feature `reload`, the engine follows the file while the program runs.
    ///
    /// # Errors
    /// The file cannot be read, or is not a policy.
    pub fn open(self, path: impl AsRef<Path>) -> Result<EngineBuilder, PolicyError> {
        let path = path.as_ref();
        let content = read_file(path)?;
        let builder = self.policy(Policy::compile(&path.display().to_string(), &content)?);
        #[cfg(feature = "reload")]
        let builder = {
            let file = PolicyFile { path: path.to_owned(), content, listener: None };
            EngineBuilder { file: Some(file), ..builder }
        };
        Ok(builder)
    }
}

/// Configures an engine: its store, its clock and its secret.
///
/// ```
/// use tollgate::{CheckRequest, Engine, ManualClock};
/// let time = ManualClock::new();
/// let policy = "limits: [{name: all, rate: 1/min}]".parse()?;
/// let engine = Engine::builder().policy(policy).clock(time.clock()).build();
/// assert!(engine.try_check(&CheckRequest::new(), engine.now())?.is_allowed());
/// assert!(!engine.try_check(&CheckRequest::new(), engine.now())?.is_allowed());
/// time.advance(std::time::Duration::from_secs(60));
/// assert!(engine.try_check(&CheckRequest::new(), engine.now())?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct EngineBuilder<S = MemoryStore> {
    policy: Policy,
    store: StoreSource<S>,
    clock: Clock,
    secret: Option<Secret>,
    #[cfg(feature = "reload")]
    file: Option<PolicyFile>,
}

/// A store of the caller, or one that is created with the engine, when its clock is known.
enum StoreSource<S> {
    Given(S),
    Create { bytes: u64, create: fn(u64, Timestamp) -> S },
}

impl EngineBuilder {
    /// The maximum bytes of the counters in memory; by default 64 MiB.
    pub fn capacity_bytes(mut self, capacity: u64) -> Self {
        if let StoreSource::Create { bytes, .. } = &mut self.store {
            *bytes = capacity;
        }
        self
    }
}

impl<S> EngineBuilder<S> {
    /// Keeps the counters in this store; by default in memory.
    pub fn store<T: Store>(self, store: T) -> EngineBuilder<T> {
        EngineBuilder {
            policy: self.policy,
            store: StoreSource::Given(store),
            clock: self.clock,
            secret: self.secret,
            #[cfg(feature = "reload")]
            file: self.file,
        }
    }

    /// Hears what became of a changed policy file: it is active, or it was refused and the last good policy stays. Only
    /// an engine whose policy was [opened](WithoutPolicy::open) follows a file. A thread looks at the file once
    /// a second, and takes it when its size and time are those of the look before; [`Engine::now`] makes its policy active.
    ///
    /// ```no_run
    /// use tollgate::Engine;
    /// use tollgate::engine::Reload;
    /// let engine = Engine::builder().open("policy.yaml")?;
    /// let engine = engine.on_reload(|reload| match reload {
    ///     Reload::Active(report) => println!("reloaded: {report:?}"),
    ///     Reload::Refused(error) => eprintln!("{error}"),
    ///     _ => {}
    /// });
    /// let engine = engine.build();
    /// # let _ = engine;
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    #[cfg(feature = "reload")]
    pub fn on_reload(mut self, listener: impl Fn(&Reload<'_>) + Send + Sync + 'static) -> Self {
        if let Some(file) = &mut self.file {
            file.listener = Some(Box::new(listener));
        }
        self
    }

    /// The clock of [`Engine::now`]; by default the precise one.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The secret of the key hash; by default that of the store, or a random one. Engines that share counters must share
    /// it.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }
}

impl<S: Store> EngineBuilder<S> {
    /// The engine.
    #[must_use]
    pub fn build(self) -> Engine<S> {
        let Self { policy, store, clock, secret, .. } = self;
        let store = match store {
            StoreSource::Given(store) => store,
            StoreSource::Create { bytes, create } => create(bytes, clock.now()),
        };
        let secret = secret.or_else(|| store.secret()).unwrap_or_else(Secret::random);
        let active = ActivePolicy::first(Arc::new(policy), Arc::new(secret), store.is_grouped());
        let engine = Engine::assemble(active, store, clock);
        #[cfg(feature = "reload")]
        let engine = Engine { watch: self.file.map(FileWatch::start), ..engine };
        engine
    }
}
