//! Nothing is written by an instance of the operator that no longer leads.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{BoxFuture, poll_fn};
use http::{Method, Request};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tower::{BoxError, Service};

/// The value of a fence that does not close by itself.
const FOREVER: u64 = u64::MAX;

/// Until when an instance may write. All clones are the same fence.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    /// Milliseconds after `start`.
    until: AtomicU64,
}

/// A request was held back, since another instance may lead.
#[derive(Debug, thiserror::Error)]
#[error("this instance of the operator does not lead any more")]
struct Held;

impl Fence {
    /// A fence that stays open until it is closed.
    #[must_use]
    pub fn open() -> Self {
        Self::until_millis(FOREVER)
    }

    /// A fence that is closed.
    #[must_use]
    pub fn closed() -> Self {
        Self::until_millis(0)
    }

    fn until_millis(until: u64) -> Self {
        Self(Arc::new(Inner {
            start: Instant::now(),
            until: AtomicU64::new(until),
        }))
    }

    /// Lets through until `time`.
    pub(crate) fn open_until(&self, time: Instant) {
        let after = time.saturating_duration_since(self.0.start).as_millis();
        let after = u64::try_from(after).unwrap_or(FOREVER);
        self.0.until.store(after, Ordering::SeqCst);
    }

    /// Lets nothing through from now on.
    pub(crate) fn close(&self) {
        self.0.until.store(0, Ordering::SeqCst);
    }

    /// Whether it lets through, now. The clock goes on while the process is stopped.
    pub(crate) fn is_open(&self) -> bool {
        match self.0.until.load(Ordering::SeqCst) {
            FOREVER => true,
            until => self.0.start.elapsed() < Duration::from_millis(until),
        }
    }

    /// A client whose writes pass this fence.
    ///
    /// # Errors
    /// No client can be made from the configuration.
    pub fn client(&self, config: kube::Config) -> Result<Client, kube::Error> {
        let layer = tower::layer::layer_fn(|inner| Fenced {
            inner,
            fence: self.clone(),
        });
        Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
    }
}

/// Sends what the fence lets through.
struct Fenced<S> {
    inner: S,
    fence: Fence,
}

impl<S> Service<Request<Body>> for Fenced<S>
where
    S: Service<Request<Body>>,
    S::Future: Send + 'static,
    S::Response: 'static,
    S::Error: Into<BoxError> + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            let answer = self.inner.call(request);
            return async move { answer.await.map_err(Into::into) }.boxed();
        }
        if !self.fence.is_open() {
            return async { Err(Held.into()) }.boxed();
        }
        let fence = self.fence.clone();
        let answer = self.inner.call(request);
        async move {
            let mut answer = pin!(answer);
            // Looked at whenever the request would go on: the client tries again by itself, after a
            // wait.
            let held = || Poll::Ready(Err(Held.into()));
            poll_fn(|context| {
                if fence.is_open() {
                    answer.as_mut().poll(context).map_err(Into::into)
                } else {
                    held()
                }
            })
            .await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    async fn sent(fence: &Fence, method: Method) -> bool {
        let inner = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, BoxError>(Response::new(Body::empty()))
        });
        let mut service = Fenced {
            inner,
            fence: fence.clone(),
        };
        let request = Request::builder()
            .method(method)
            .body(Body::empty())
            .unwrap();
        service.call(request).await.is_ok()
    }

    #[tokio::test]
    async fn writes_are_held_back_behind_a_closed_fence_and_reads_are_not() {
        let fence = Fence::open();
        assert!(sent(&fence, Method::PUT).await);
        fence.close();
        assert!(!sent(&fence, Method::PUT).await);
        assert!(!sent(&fence, Method::DELETE).await);
        assert!(sent(&fence, Method::GET).await);
        fence.open_until(Instant::now() + Duration::from_mins(1));
        assert!(sent(&fence, Method::PATCH).await);
        fence.open_until(Instant::now());
        assert!(!sent(&fence, Method::PATCH).await);
    }

    #[tokio::test]
    async fn a_request_that_waits_is_held_back_once_the_fence_closes() {
        let fence = Fence::open();
        let closing = fence.clone();
        // As the retry of the client does: wait, then send.
        let inner = tower::service_fn(move |_: Request<Body>| {
            let closing = closing.clone();
            async move {
                closing.close();
                tokio::task::yield_now().await;
                Ok::<_, BoxError>(Response::new(Body::empty()))
            }
        });
        let mut service = Fenced { inner, fence };
        let request = Request::post("/").body(Body::empty()).unwrap();
        assert!(service.call(request).await.is_err());
    }
}
