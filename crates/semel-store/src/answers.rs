//! Delivery of outcomes to waiting callers. Waking a task from outside its runtime takes a lock that all
//! threads share, so the runtime's own threads deliver the answers of a large group.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Up to this many answers are delivered in place, so that a lone caller does not wait for a second thread.
const IN_PLACE_MAX: usize = 4;
/// Answers that one task delivers: few enough to spread over the runtime's threads, and to fit one thread's queue.
const CHUNK: usize = 64;

/// An outcome to be delivered to its waiting caller.
pub(crate) trait Answer: Send + 'static {
    /// Whether the caller is gone.
    fn is_for_nobody(&self) -> bool;
    /// Delivers the outcome.
    fn give(self);
}

/// The outcomes of one group.
pub(crate) struct Answers<A: Answer> {
    runtime: Option<Handle>,
    ready: Chunk<A>,
}

/// Outcomes that are delivered on drop, so that no answer is lost with a runtime that ends.
struct Chunk<A: Answer>(Vec<A>);

impl<A: Answer> Drop for Chunk<A> {
    fn drop(&mut self) {
        self.0.drain(..).for_each(A::give);
    }
}

impl<A: Answer> Answers<A> {
    /// Outcomes that are delivered in place.
    pub(crate) fn in_place() -> Self {
        Self { runtime: None, ready: Chunk(Vec::new()) }
    }

    /// Outcomes that the threads of the current runtime deliver, if it is multi-threaded.
    pub(crate) fn beside() -> Self {
        let runtime = Handle::try_current().ok();
        let runtime = runtime.filter(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        Self { runtime, ..Self::in_place() }
    }

    /// An empty set of outcomes with the same way of delivery.
    pub(crate) fn another(&self) -> Self {
        Self { runtime: self.runtime.clone(), ready: Chunk(Vec::new()) }
    }

    /// Adds an outcome.
    pub(crate) fn push(&mut self, answer: A) {
        self.ready.0.push(answer);
    }

    /// Delivers all outcomes.
    pub(crate) fn give(&mut self) {
        // In place, before the batcher goes on: an answer without a taker may leave behind a decision yet to be taken.
        self.ready.0.extract_if(.., |answer| answer.is_for_nobody()).for_each(A::give);
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.ready.0.len() > IN_PLACE_MAX) else {
            return self.ready.0.drain(..).for_each(A::give);
        };
        while !self.ready.0.is_empty() {
            let rest = self.ready.0.len().saturating_sub(CHUNK);
            let chunk = Chunk(self.ready.0.split_off(rest));
            runtime.spawn(async move { drop(chunk) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from this number on belong to callers that are gone.
    const GONE: usize = 1_000_000;

    struct Told(usize, std::sync::mpsc::Sender<usize>);

    impl Answer for Told {
        fn is_for_nobody(&self) -> bool {
            self.0 >= GONE
        }

        fn give(self) {
            self.1.send(self.0).unwrap_or_default();
        }
    }

    fn tell(mut answers: Answers<Told>, count: usize) -> std::sync::mpsc::Receiver<usize> {
        let (told, heard) = std::sync::mpsc::channel();
        (0..count).for_each(|number| answers.push(Told(number, told.clone())));
        answers.give();
        heard
    }

    fn threads() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn everybody_is_answered_once_by_the_runtime_or_in_place() {
        let runtime = threads();
        for count in [0, 1, IN_PLACE_MAX, IN_PLACE_MAX + 1, CHUNK, 3 * CHUNK + 1] {
            let answers = runtime.block_on(async { Answers::beside() });
            let mut heard: Vec<usize> = tell(answers, count).iter().collect();
            heard.sort_unstable();
            assert_eq!(heard, (0..count).collect::<Vec<_>>());
            assert_eq!(tell(Answers::in_place(), count).try_iter().count(), count);
        }
    }

    /// The decisions they leave behind are there when the batcher looks again.
    #[test]
    fn those_who_are_gone_are_answered_in_place() {
        let runtime = threads();
        // Keeps the runtime's only thread busy until everything was checked.
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let busy = runtime.spawn(async move { wait.recv().unwrap_or_default() });
        let (told, heard) = std::sync::mpsc::channel();
        let mut answers = runtime.block_on(async { Answers::beside() });
        (GONE - CHUNK..GONE + CHUNK).for_each(|number| answers.push(Told(number, told.clone())));
        answers.give();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), (GONE..GONE + CHUNK).collect::<Vec<_>>());
        drop(go_on);
        runtime.block_on(busy).unwrap();
        drop((answers, told));
        assert_eq!(heard.iter().count(), CHUNK);
    }

    #[test]
    fn nobody_is_forgotten_when_the_runtime_has_ended() {
        let runtime = threads();
        let answers = runtime.block_on(async { Answers::beside() });
        drop(runtime);
        assert_eq!(tell(answers, 100).try_iter().count(), 100);
    }
}
