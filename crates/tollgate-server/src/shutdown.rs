//! How tasks learn that the server is to stop.

use tokio::sync::watch;

/// Turns true when the server is to stop; a connection then answers what is in flight, and ends.
pub(crate) type Stop = watch::Receiver<bool>;

/// Until the server is told to stop, which it also is when nobody is left to tell it.
pub(crate) async fn stopped(stop: &mut Stop) {
    let _ = stop.wait_for(|stop| *stop).await;
}
