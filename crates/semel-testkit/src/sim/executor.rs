//! The scheduler: one thread, many tasks, and dice that choose who runs next. Runs inside a tokio runtime
//! whose clock is paused; when no task is ready, the runtime advances its clock to the next timer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::dice::Dice;

/// The owner of a task: all tasks of one owner are killed or frozen together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The network, and everything that never fails.
    World,
    /// A server.
    Server(usize),
    /// A worker.
    Worker(usize),
}

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Names a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(u64);

enum Order {
    Spawn(TaskId, Owner, Job),
    Abort(TaskId),
    Kill(Owner),
    Freeze(Owner),
    Thaw(Owner),
}

/// Gives orders to the executor from inside its tasks; they are carried out before the next step.
#[derive(Clone, Default)]
pub struct Handle {
    orders: Arc<Mutex<Vec<Order>>>,
    tasks: Arc<AtomicU64>,
    steps: Arc<AtomicU64>,
    waits: Arc<Mutex<Vec<(u64, Waker)>>>,
    executor: Arc<Mutex<Option<Waker>>>,
}

impl Handle {
    /// Starts a task.
    pub fn spawn(&self, owner: Owner, task: impl Future<Output = ()> + Send + 'static) -> TaskId {
        let id = TaskId(self.tasks.fetch_add(1, Ordering::Relaxed));
        self.order(Order::Spawn(id, owner, Box::pin(task)));
        id
    }

    /// Drops a task at its current await.
    pub fn abort(&self, task: TaskId) {
        self.order(Order::Abort(task));
    }

    /// Drops all tasks of an owner at their current awaits.
    pub fn kill(&self, owner: Owner) {
        self.order(Order::Kill(owner));
    }

    /// Stops polling the tasks of an owner until it is thawed.
    pub fn freeze(&self, owner: Owner) {
        self.order(Order::Freeze(owner));
    }

    /// Ends a freeze.
    pub fn thaw(&self, owner: Owner) {
        self.order(Order::Thaw(owner));
    }

    /// Waits until this many more steps have been taken, by any tasks.
    pub async fn steps(&self, more: u64) {
        let until = self.steps.load(Ordering::Relaxed) + more;
        poll_fn(|context| {
            if self.steps.load(Ordering::Relaxed) >= until {
                return Poll::Ready(());
            }
            self.waits.lock().unwrap().push((until, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Whether there are orders that have not been carried out.
    pub fn has_orders(&self) -> bool {
        !self.orders.lock().unwrap().is_empty()
    }

    /// The order may come from outside of the executor, so the executor is woken explicitly.
    fn order(&self, order: Order) {
        self.orders.lock().unwrap().push(order);
        if let Some(executor) = &*self.executor.lock().unwrap() {
            executor.wake_by_ref();
        }
    }
}

/// Yields, so that the dice choose the next task.
pub async fn pass() {
    let mut passed = false;
    poll_fn(|context| {
        if passed {
            return Poll::Ready(());
        }
        passed = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct Flag {
    is_woken: AtomicBool,
    executor: Arc<Mutex<Option<Waker>>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        if let Some(executor) = &*self.executor.lock().unwrap() {
            executor.wake_by_ref();
        }
    }
}

struct Task {
    id: TaskId,
    owner: Owner,
    flag: Arc<Flag>,
    job: Job,
}

/// Runs the tasks, polling a random ready one at each step.
pub struct Executor {
    handle: Handle,
    tasks: Vec<Task>,
    frozen: Vec<Owner>,
    dice: Dice,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Executor {
    /// An executor without tasks, whose every choice comes from `dice`.
    pub fn new(dice: Dice) -> Self {
        let handle = Handle::default();
        let waker = Arc::clone(&handle.executor);
        Self { handle, tasks: Vec::new(), frozen: Vec::new(), dice, waker }
    }

    /// A handle that starts tasks.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until `is_over` returns true or `steps_max` steps were taken; returns how many were. `is_over` is
    /// asked after each step.
    pub async fn run(&mut self, steps_max: u64, mut is_over: impl FnMut() -> bool) -> u64 {
        let mut taken = 0;
        let steps = poll_fn(|context| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            loop {
                self.obey();
                let ready: Vec<usize> = (0..self.tasks.len())
                    .filter(|at| {
                        let task = &self.tasks[*at];
                        task.flag.is_woken.load(Ordering::Acquire) && !self.frozen.contains(&task.owner)
                    })
                    .collect();
                if ready.is_empty() {
                    return Poll::Pending;
                }
                let at = ready[self.dice.below(ready.len() as u64) as usize];
                self.step(at);
                taken += 1;
                if is_over() || taken >= steps_max {
                    return Poll::Ready(taken);
                }
            }
        });
        // Tokio's budget, which makes tasks yield, would apply to the executor as a whole.
        tokio::task::coop::unconstrained(steps).await
    }

    fn step(&mut self, at: usize) {
        let task = &mut self.tasks[at];
        task.flag.is_woken.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&task.flag));
        if task.job.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(self.tasks.swap_remove(at));
        }
        let now = self.handle.steps.fetch_add(1, Ordering::Relaxed) + 1;
        self.handle.waits.lock().unwrap().retain(|(until, waker)| {
            let is_due = *until <= now;
            if is_due {
                waker.wake_by_ref();
            }
            !is_due
        });
    }

    fn obey(&mut self) {
        loop {
            let orders = std::mem::take(&mut *self.handle.orders.lock().unwrap());
            if orders.is_empty() {
                return;
            }
            for order in orders {
                match order {
                    Order::Spawn(id, owner, job) => {
                        let flag =
                            Flag { is_woken: AtomicBool::new(true), executor: Arc::clone(&self.waker) };
                        self.tasks.push(Task { id, owner, flag: Arc::new(flag), job });
                    }
                    Order::Abort(id) => self.tasks.retain(|task| task.id != id),
                    Order::Kill(owner) => self.tasks.retain(|task| task.owner != owner),
                    Order::Freeze(owner) => self.frozen.push(owner),
                    Order::Thaw(owner) => self.frozen.retain(|frozen| *frozen != owner),
                }
            }
        }
    }
}
