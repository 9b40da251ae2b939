//! A collective call of the library, stepped: it says what it wants to send and receive, its member
//! does that as a call that waits, and then it goes on.
//!
//! Invariant: one thing is wanted at a time. The call is the library's own, from its first line to
//! its last; what it is made of here is [`Calls`] alone.

use super::plan::{Made, What, after, crossed, input, ordered, says, varied, whole};
use crate::collective::{Call, Calls, Op, To, Turn, combine};
use crate::error::MpError;
use crate::matching::{Envelope, Pattern};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What a call wants: a message sent, one received, or both.
pub(super) struct Wish {
    pub(super) send: Option<(To, Vec<u8>)>,
    /// And bytes of memory for it.
    pub(super) receive: Option<(Pattern, usize)>,
}

/// What it gets: what was received, in the memory for it.
pub(super) type Granted = Result<Option<(Envelope, u64, Vec<u8>)>, MpError>;

/// What a call has given: bytes, or the number and members of a group.
#[derive(Default)]
pub(super) struct Given {
    pub(super) bytes: Vec<u8>,
    pub(super) group: Option<(u32, Arc<[u32]>)>,
}

/// Between a call and its member.
#[derive(Default)]
pub(super) struct Port {
    wish: RefCell<Option<Wish>>,
    granted: RefCell<Option<Granted>>,
}

/// A call under way.
pub(super) struct Running {
    port: Rc<Port>,
    call: Pin<Box<dyn Future<Output = Result<Given, MpError>>>>,
}

/// How far a call has come.
pub(super) enum Step {
    Wants(Wish),
    Over(Result<Given, MpError>),
}

impl Port {
    async fn gets(&self, send: Option<(To, Vec<u8>)>, receive: Option<(Pattern, usize)>) -> Granted {
        *self.wish.borrow_mut() = Some(Wish { send, receive });
        poll_fn(|_| self.granted.borrow_mut().take().map_or(Poll::Pending, Poll::Ready)).await
    }
}

fn copied(granted: Granted, into: &mut [u8]) -> Result<(Envelope, u64), MpError> {
    let (envelope, len, memory) = granted?.expect("it was to receive something");
    into[..len as usize].copy_from_slice(&memory[..len as usize]);
    Ok((envelope, len))
}

impl Calls for Port {
    async fn send(&self, to: To, bytes: &[u8]) -> Result<(), MpError> {
        self.gets(Some((to, bytes.to_vec())), None).await.map(drop)
    }

    async fn receive(&self, of: Pattern, into: &mut [u8]) -> Result<(Envelope, u64), MpError> {
        copied(self.gets(None, Some((of, into.len()))).await, into)
    }

    async fn exchange(&self, to: To, bytes: &[u8], of: Pattern, into: &mut [u8]) -> Result<(Envelope, u64), MpError> {
        copied(self.gets(Some((to, bytes.to_vec())), Some((of, into.len()))).await, into)
    }
}

impl Running {
    /// Begins a call of the list in a group of this number, as a member makes it. `new`: a number
    /// for the group that it makes.
    pub(super) fn new(
        number: u32,
        members: Arc<[u32]>,
        member: u32,
        call: usize,
        made: Made,
        new: Option<u32>,
    ) -> Running {
        let port = Rc::new(Port::default());
        let own = members.iter().position(|other| *other == member).expect("it is one of them");
        let at = port.clone();
        let run = async move {
            let (calls, count) = (&*at, members.len());
            let turn = Turn { calls, context: 2 * number + 1, members: &members, call: made.what.kind(), own, count };
            runs(turn, call, made, new, member).await
        };
        Running { port, call: Box::pin(run) }
    }

    /// It goes on, with what it has got.
    pub(super) fn goes_on(&mut self, granted: Option<Granted>) -> Step {
        *self.port.granted.borrow_mut() = granted;
        match self.call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(given) => Step::Over(given),
            Poll::Pending => Step::Wants(self.port.wish.borrow_mut().take().expect("it waits for what it wants")),
        }
    }
}

impl What {
    /// What the messages of a call are called: as the calls of a group say it.
    pub(super) fn kind(self) -> Call {
        match self {
            What::Barrier => Call::Barrier,
            What::Broadcast | What::Duplicate => Call::Broadcast,
            What::Gather | What::GatherVaried => Call::Gather,
            What::Allgather | What::AllgatherVaried | What::Split => Call::Allgather,
            What::Scatter => Call::Scatter,
            What::AllToAll | What::AllToAllVaried => Call::AllToAll,
            What::Reduce | What::ReduceBy => Call::Reduce,
            What::Allreduce | What::AllreduceBy => Call::Allreduce,
            What::Scan | What::ScanBy => Call::Scan,
        }
    }
}

/// One call, with memory as a program has it.
async fn runs<C: Calls>(
    turn: Turn<'_, C>,
    call: usize,
    Made { what, root, len }: Made,
    new: Option<u32>,
    member: u32,
) -> Result<Given, MpError> {
    let (own, size, is_root) = (turn.own, turn.count, turn.own == root as usize);
    let part = |of: usize| input(call, of, len);
    let all = |each: &dyn Fn(usize) -> usize| vec![0; (0..size).map(each).sum()];
    let mut sum = combine::<u64>(Op::Sum);
    let mut bytes = Vec::new();
    let mut group = None;
    match what {
        What::Barrier => turn.barrier().await?,
        What::Broadcast => {
            bytes = if is_root { part(own) } else { vec![0; len] };
            turn.broadcast(root, &mut bytes).await?;
        }
        What::Gather => {
            bytes = if is_root { all(&|_| len) } else { Vec::new() };
            turn.gather(root, &part(own), &mut bytes).await?;
        }
        What::GatherVaried => {
            let lens: Vec<usize> = (0..size).map(|rank| varied(len, rank)).collect();
            bytes = if is_root { all(&|rank| lens[rank]) } else { Vec::new() };
            turn.gather_varied(root, &input(call, own, lens[own]), &lens, &mut bytes).await?;
        }
        What::Allgather => {
            bytes = all(&|_| len);
            turn.allgather(&part(own), &mut bytes).await?;
        }
        What::AllgatherVaried => {
            let lens: Vec<usize> = (0..size).map(|rank| varied(len, rank)).collect();
            bytes = all(&|rank| lens[rank]);
            turn.allgather_varied(&input(call, own, lens[own]), &lens, &mut bytes).await?;
        }
        What::Scatter => {
            let from = if is_root { (0..size).flat_map(part).collect() } else { Vec::new() };
            bytes = vec![0; len];
            turn.scatter(root, &from, &mut bytes).await?;
        }
        What::AllToAll => {
            let from: Vec<u8> = (0..size).flat_map(|to| part(own * size + to)).collect();
            bytes = all(&|_| len);
            turn.all_to_all(&from, &mut bytes).await?;
        }
        What::AllToAllVaried => {
            let from_lens: Vec<usize> = (0..size).map(|to| crossed(len, own, to)).collect();
            let to_lens: Vec<usize> = (0..size).map(|from| crossed(len, from, own)).collect();
            let from: Vec<u8> = (0..size).flat_map(|to| input(call, own * size + to, from_lens[to])).collect();
            bytes = all(&|from| to_lens[from]);
            turn.all_to_all_varied(&from, &from_lens, &mut bytes, &to_lens).await?;
        }
        What::Reduce => {
            bytes = input(call, own, whole(len));
            turn.reduce(root, &mut bytes, &mut sum).await?;
        }
        What::ReduceBy => {
            bytes = ordered(call, own, len);
            turn.reduce(root, &mut bytes, &mut after).await?;
        }
        What::Allreduce => {
            bytes = input(call, own, whole(len));
            turn.allreduce(&mut bytes, 8, &mut sum).await?;
        }
        What::AllreduceBy => {
            bytes = ordered(call, own, len);
            turn.allreduce_doubling(&mut bytes, &mut after).await?;
        }
        What::Scan => {
            bytes = input(call, own, whole(len));
            turn.scan(&mut bytes, &mut sum).await?;
        }
        What::ScanBy => {
            bytes = ordered(call, own, len);
            turn.scan(&mut bytes, &mut after).await?;
        }
        What::Duplicate => group = Some((turn.agree(new).await?, turn.members.into())),
        What::Split => {
            let (colour, key) = says(call, member);
            group = turn.split(new, colour, key).await?;
        }
    }
    Ok(Given { bytes, group })
}
