//! A minimal executor that knows which tasks were woken. Tasks run only on request, on the test's own thread.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A running future. Dropping the task drops the future.
pub(crate) struct Task<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    woken: Arc<Flag>,
    answer: Option<T>,
}

impl<T> Task<T> {
    /// Starts a future: polls it once.
    pub(crate) fn start(future: impl Future<Output = T> + Send + 'static) -> Self {
        let mut task = Self { future: Box::pin(future), woken: Arc::new(Flag::default()), answer: None };
        task.woken.0.store(true, Ordering::SeqCst);
        task.run();
        task
    }

    /// Polls the future if and only if it was woken. Returns whether it is done.
    pub(crate) fn run(&mut self) -> bool {
        while self.answer.is_none() && self.woken.0.swap(false, Ordering::SeqCst) {
            let waker = Waker::from(Arc::clone(&self.woken));
            if let Poll::Ready(answer) = self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.answer = Some(answer);
            }
        }
        self.answer.is_some()
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    pub(crate) const fn answer(&self) -> Option<&T> {
        self.answer.as_ref()
    }

    pub(crate) fn into_answer(self) -> Option<T> {
        self.answer
    }
}

/// Runs woken tasks until none is left.
pub(crate) fn settle<T>(tasks: &mut [Task<T>]) {
    while tasks.iter().any(|task| task.answer.is_none() && task.is_woken()) {
        tasks.iter_mut().for_each(|task| {
            task.run();
        });
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread, for waits on the real clock.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        std::thread::park();
    }
}
