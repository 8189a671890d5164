//! The file descriptors for connections to upstreams: a part of their own, and those that listeners share with them.

use std::sync::Arc;

use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore};

/// Descriptors reserved for one user, and those that all share.
#[derive(Clone)]
pub struct Descriptors {
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

impl Descriptors {
    /// These, and those that all share.
    #[must_use]
    pub const fn new(own: Arc<Semaphore>, shared: Arc<Semaphore>) -> Self {
        Self { own, shared }
    }

    /// Waits for a descriptor.
    ///
    /// # Errors
    /// Never: the semaphores are not closed.
    pub async fn one(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        let (own, shared) = (Arc::clone(&self.own), Arc::clone(&self.shared));
        tokio::select! {
            biased; // What others cannot take is taken first.
            own = own.acquire_owned() => own,
            shared = shared.acquire_owned() => shared,
        }
    }

    /// Takes a descriptor, if one is free.
    #[must_use]
    pub fn one_now(&self) -> Option<OwnedSemaphorePermit> {
        let own = Arc::clone(&self.own).try_acquire_owned();
        own.or_else(|_| Arc::clone(&self.shared).try_acquire_owned()).ok()
    }
}

/// The descriptors for connections to upstreams.
#[derive(Clone)]
pub struct UpstreamBudget {
    most: usize,
    descriptors: Descriptors,
    /// Notified when a connection is needed and no descriptor is free.
    wanted: Arc<Notify>,
}

impl UpstreamBudget {
    /// This many only, for a test.
    #[cfg(test)]
    pub(crate) fn of(upstreams: usize) -> Self {
        Self::new(Descriptors::new(Arc::new(Semaphore::new(upstreams)), Arc::new(Semaphore::new(0))))
    }

    /// Connections to upstreams use these descriptors.
    #[must_use]
    pub fn new(descriptors: Descriptors) -> Self {
        let Descriptors { own, shared } = &descriptors;
        let most = own.available_permits().saturating_add(shared.available_permits());
        Self { most, descriptors, wanted: Arc::default() }
    }

    /// The maximum, when no listener uses the shared part.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.most
    }

    /// Waits until a descriptor was needed and none was free.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Takes a descriptor, if one is free.
    #[must_use]
    pub fn one_now(&self) -> Option<OwnedSemaphorePermit> {
        self.descriptors.one_now()
    }

    /// Waits for a descriptor.
    ///
    /// # Errors
    /// Never: the semaphores are not closed.
    pub async fn one(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        if let Some(one) = self.descriptors.one_now() {
            return Ok(one);
        }
        self.wanted.notify_one();
        self.descriptors.one().await
    }
}
