//! The stop signal for tasks.

use tokio::sync::watch;

/// Turns true when the server stops. A connection then answers the requests in flight, and ends.
pub type Stop = watch::Receiver<bool>;

/// Waits until the server stops. A dropped sender counts as a stop.
pub async fn stopped(stop: &mut Stop) {
    let _ = stop.wait_for(|stop| *stop).await;
}
