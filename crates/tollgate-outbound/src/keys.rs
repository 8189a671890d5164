//! Which bucket: the server, a credential, the server's name of a bucket, a route, or a counter of the policy.

use std::sync::Arc;

use crate::refusal::Basis;

/// Which bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BucketKey {
    /// A server, whatever the credential: whether it fails.
    Host(Arc<str>),
    /// A server, as one credential sees it.
    Origin(Arc<str>),
    /// A bucket that the server names, of an origin.
    Named(Arc<str>, Arc<str>),
    /// The routes whose bucket is not known yet, of an origin and a `scope`.
    Unknown(Arc<str>, Arc<str>),
    /// A route that the server refused without a name for its bucket, of an origin. It has the `scope` of the call, too.
    Route(Arc<str>, Arc<str>),
    /// A counter of the policy: the name of its limit, and its key.
    Limit(Arc<str>, u64),
}

impl BucketKey {
    /// Its name for people, at the server of this name.
    pub(crate) fn name(&self, host: &str) -> Arc<str> {
        match self {
            Self::Host(_) | Self::Origin(_) => host.into(),
            Self::Unknown(_, scope) if scope.is_empty() => format!("{host} (new routes)").into(),
            Self::Unknown(_, scope) => format!("{host} (new routes {scope})").into(),
            Self::Named(_, name) | Self::Route(_, name) => format!("{host} ({name})").into(),
            Self::Limit(name, _) => Arc::clone(name),
        }
    }

    /// Whose numbers it follows.
    pub(crate) const fn basis(&self) -> Basis {
        match self {
            Self::Limit(..) => Basis::Policy,
            Self::Host(_) | Self::Origin(_) | Self::Named(..) | Self::Unknown(..) | Self::Route(..) => {
                Basis::Server
            }
        }
    }
}

/// The identity by which calls differ.
#[derive(Clone, Debug)]
pub(crate) struct CallIdentity {
    /// The server and the credential.
    pub(crate) origin: Arc<str>,
    /// The name of the server.
    pub(crate) host: Arc<str>,
    pub(crate) route: Arc<str>,
    /// The resource that the server counts apart in each bucket that it names. Empty for most servers.
    pub(crate) scope: Arc<str>,
}

impl CallIdentity {
    /// The key of a bucket that the server names.
    pub(crate) fn named(&self, name: &str) -> BucketKey {
        BucketKey::Named(Arc::clone(&self.origin), self.scoped(name))
    }

    /// The key of the routes whose bucket is not known.
    pub(crate) fn unknown(&self) -> BucketKey {
        BucketKey::Unknown(Arc::clone(&self.origin), Arc::clone(&self.scope))
    }

    /// The key of its route, if the caller said which it is.
    pub(crate) fn route(&self) -> Option<BucketKey> {
        let has_route = !self.route.is_empty();
        has_route.then(|| BucketKey::Route(Arc::clone(&self.origin), self.scoped(&self.route)))
    }

    fn scoped(&self, name: &str) -> Arc<str> {
        if self.scope.is_empty() { name.into() } else { format!("{name} {}", self.scope).into() }
    }
}
