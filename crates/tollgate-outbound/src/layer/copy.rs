//! Copies of request bodies for further attempts.

/// Copies the body of a request, so that another attempt can send it. A closure is one, too:
/// `|body: &MyBody| body.copy()`.
pub trait CopyBody<B>: Send + Sync + 'static {
    /// A copy, or `None` if the body can be sent only once.
    fn copy(&self, body: &B) -> Option<B>;
}

/// Clones bodies: `Full<Bytes>`, `Empty<Bytes>`, `String`, and all others that are `Clone`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneBody;

impl<B: Clone> CopyBody<B> for CloneBody {
    fn copy(&self, body: &B) -> Option<B> {
        Some(body.clone())
    }
}

/// Sends each body once. Calls wait, but are never attempted again.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOnce;

impl<B> CopyBody<B> for SendOnce {
    fn copy(&self, _: &B) -> Option<B> {
        None
    }
}

impl<B, F: Fn(&B) -> Option<B> + Send + Sync + 'static> CopyBody<B> for F {
    fn copy(&self, body: &B) -> Option<B> {
        self(body)
    }
}
