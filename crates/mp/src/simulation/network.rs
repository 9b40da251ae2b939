//! What members stand on in a simulated job: channels whose messages take their time, few places in
//! each, memory that lets parts in by token, and news of who has gone.
//!
//! Invariant: a channel keeps its order, whatever happens between channels. What is let into memory
//! is let in while its buffer is there, and not a byte later.

use super::model::{MessageId, Model};
use super::plan::Plan;
use super::{Planted, Rng};
use crate::error::{Gone, MpError};
use crate::limits::{FRAMES, PART_BUFFERS, RANGES_AT_ONCE};
use crate::transport::{Bytes, Landing, NotSent, Transport};
use crate::wire::HEAD_BYTES;
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use vmmc::{AccessError, Came, ExportId, Nanos, PayloadToken};

/// A microsecond, in units of the clock.
pub(super) const US: u64 = 1_000;
/// A millisecond.
pub(super) const MS: u64 = 1_000 * US;
/// Messages that a channel holds at most, and that were not taken: drawn up to this.
const SLOTS_MAX: u64 = 40;
/// How long a slow channel takes at most; what is said of a member that has died waits longer.
const DELAY_MAX: u64 = 30 * MS;
/// How long it takes at most until others hear of a member's death.
const NEWS_MAX: u64 = 300 * MS;

/// The world of one run, which all members share.
#[derive(Clone)]
pub(super) struct Net(Rc<RefCell<World>>);

pub(super) struct World {
    pub(super) now: u64,
    pub(super) rng: Rng,
    pub(super) model: Model,
    /// The collective calls.
    pub(super) plan: Plan,
    pub(super) planted: Option<Planted>,
    pub(super) nodes: Vec<Node>,
    /// By receiver, then by sender.
    channels: Vec<Channel>,
    key: u64,
}

/// A member, seen from outside.
#[derive(Default)]
pub(super) struct Node {
    /// Why it is not there any more, since when.
    pub(super) over: Option<(u64, Gone)>,
    /// Operations of its transport until it is killed.
    pub(super) fuse: Option<u64>,
    /// Connections that are being made, and when they are there.
    connecting: Vec<(u64, u32)>,
    /// What it will hear of others, and when.
    news: Vec<(u64, u32, Gone)>,
    /// Memory that is let into, by index of token.
    armed: BTreeMap<u32, Armed>,
    armed_next: u32,
}

struct Armed {
    key: u64,
    own: bool,
    /// Its buffer is gone, and nothing is to be let in.
    stale: bool,
    memory: Rc<RefCell<Vec<u8>>>,
    range: Range<usize>,
}

struct Channel {
    items: VecDeque<Item>,
    slots: u64,
    frames: u64,
    /// The longest way of a message.
    delay: u64,
    latest: u64,
    /// The sender finds it broken from then on.
    broken: Option<u64>,
}

struct Item {
    at: u64,
    control: Vec<u8>,
    payload: Option<Vec<u8>>,
    by_token: Option<(PayloadToken, Vec<u8>)>,
    /// When its bytes are let in, until they were.
    lands: Option<u64>,
    /// How many were let in.
    landed: Option<u64>,
    message: Option<MessageId>,
}

/// A message that has come.
#[derive(Default)]
pub(super) struct Message {
    from: u32,
    control: Vec<u8>,
    payload: Option<Frame>,
    by_token: Option<(PayloadToken, Option<u64>)>,
}

/// A payload; its frames are free again when it is dropped.
pub(super) struct Frame {
    world: Net,
    channel: (u32, u32),
    bytes: Vec<u8>,
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut world = self.world.world();
        let frames = frames(self.bytes.len());
        world.channel(self.channel.0, self.channel.1).frames += frames;
    }
}

fn frames(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(FRAMES.1)
}

/// A way to another member.
pub(super) struct Connection {
    world: Net,
    from: u32,
    to: u32,
}

/// Memory that is let into until this is dropped.
pub(super) struct Buffer {
    world: Net,
    token: PayloadToken,
    rank: u32,
    memory: Rc<RefCell<Vec<u8>>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut world = self.world.world();
        let planted = world.planted == Some(Planted::LetIn);
        let armed = &mut world.nodes[self.rank as usize].armed;
        match armed.get_mut(&self.token.index) {
            Some(armed) if planted => armed.stale = true,
            _ => drop(armed.remove(&self.token.index)),
        }
    }
}

/// A range of memory that parts land in.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) memory: Rc<RefCell<Vec<u8>>>,
    pub(super) range: Range<usize>,
}

/// What a request owns.
pub(super) enum Own {
    Bytes(Vec<u8>),
    Place(Place),
}

impl Default for Own {
    fn default() -> Self {
        Own::Bytes(Vec::new())
    }
}

impl Landing for Place {
    fn len(&self) -> u64 {
        self.range.len() as u64
    }

    fn read(&self, into: &mut [u8]) -> Result<(), MpError> {
        into.copy_from_slice(&self.memory.borrow()[self.range.clone()][..into.len()]);
        Ok(())
    }

    fn write(&self, data: &[u8]) -> Result<(), MpError> {
        self.memory.borrow_mut()[self.range.clone()][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

impl Net {
    pub(super) fn new(size: u32, rng: Rng, plan: Plan, planted: Option<Planted>) -> Net {
        let mut world = World {
            now: 0,
            rng,
            model: Model::default(),
            plan,
            planted,
            nodes: (0..size).map(|_| Node::default()).collect(),
            channels: Vec::new(),
            key: 0,
        };
        for _ in 0..size * size {
            // Some are within a machine, some are far.
            let delay = [US, 50 * US, 2 * MS, DELAY_MAX][world.rng.below(4) as usize];
            let slots = 1 + world.rng.below(SLOTS_MAX);
            let channel = Channel { items: VecDeque::new(), slots, frames: FRAMES.0, delay, latest: 0, broken: None };
            world.channels.push(channel);
        }
        Net(Rc::new(RefCell::new(world)))
    }

    pub(super) fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }

    /// This member's end of it.
    pub(super) fn end(&self, rank: u32) -> End {
        End { world: self.clone(), rank }
    }
}

impl World {
    fn place(&self, from: u32, to: u32) -> usize {
        to as usize * self.nodes.len() + from as usize
    }

    fn channel(&mut self, from: u32, to: u32) -> &mut Channel {
        let place = self.place(from, to);
        &mut self.channels[place]
    }

    /// Time goes on; what is under way by token is let in.
    pub(super) fn pass(&mut self, ns: u64) {
        self.now += ns;
        let now = self.now;
        let size = self.nodes.len();
        for (at, channel) in self.channels.iter_mut().enumerate() {
            let node = &mut self.nodes[at / size];
            for item in channel.items.iter_mut().filter(|item| item.lands.is_some_and(|at| at <= now)) {
                item.land(node);
            }
        }
    }

    /// Whether a member is there; one that is killed at this step is not.
    fn lives(&mut self, rank: u32) -> bool {
        let node = &mut self.nodes[rank as usize];
        if let Some(fuse) = &mut node.fuse {
            *fuse = fuse.saturating_sub(1);
            if *fuse == 0 {
                node.fuse = None;
                self.end(rank, Gone::Failed);
            }
        }
        self.nodes[rank as usize].over.is_none()
    }

    /// A member ends: the others hear of it some time. What it has sent still comes, or some of it.
    pub(super) fn end(&mut self, rank: u32, how: Gone) {
        let now = self.now;
        let node = &mut self.nodes[rank as usize];
        if node.over.is_some() {
            return;
        }
        node.over = Some((now, how.clone()));
        node.armed.clear();
        let failed = how == Gone::Failed;
        let silent = self.planted == Some(Planted::Silence);
        let loses = failed && self.rng.below(2) == 0;
        self.channel(rank, rank).items.clear();
        for other in (0..self.nodes.len() as u32).filter(|other| *other != rank) {
            let at = now + self.rng.below(NEWS_MAX);
            if !silent {
                self.nodes[other as usize].news.push((at, rank, how.clone()));
            }
            if loses {
                let left = self.rng.below(1 + self.channels[self.place(rank, other)].items.len() as u64) as usize;
                let channel = self.channel(rank, other);
                let lost: Vec<Item> = channel.items.split_off(left).into();
                lost.iter().filter_map(|item| item.message).for_each(|message| self.model.lose(message));
            }
            let broken = now + self.rng.below(NEWS_MAX);
            let finds_out = !silent && self.rng.below(2) == 0;
            let back = self.channel(other, rank);
            back.broken = finds_out.then_some(broken);
            let lost = std::mem::take(&mut back.items);
            lost.iter().filter_map(|item| item.message).for_each(|message| self.model.lose(message));
        }
    }

    /// Whether a member may wait in a collective call for what never comes: another one makes wrong
    /// calls, has left before its part, or could not be in a group that was made.
    pub(super) fn may_wait_in_vain(&self) -> bool {
        let has_left = |node: &Node| node.over.as_ref().is_some_and(|(_, how)| *how != Gone::Failed);
        self.plan.has_odd() || self.plan.has_half_made() || self.nodes.iter().any(has_left)
    }

    /// Whether nothing is on its way between members that are there.
    pub(super) fn is_quiet(&self) -> bool {
        self.channels.iter().all(|channel| channel.items.is_empty())
    }

    /// What of a member's bounded things is in use: buffers that are let into, and frames of each
    /// sender.
    pub(super) fn in_use(&self, rank: u32) -> (usize, u64) {
        let live = (0..self.nodes.len() as u32).filter(|from| self.nodes[*from as usize].over.is_none());
        let frames = live.map(|from| FRAMES.0 - self.channels[self.place(from, rank)].frames).sum();
        (self.nodes[rank as usize].armed.values().filter(|armed| !armed.stale).count(), frames)
    }

    /// Bytes and costs of what has gone from one member to another at once, and is on its way.
    pub(super) fn on_its_way(&self, from: u32, to: u32) -> u64 {
        let items = self.channels[self.place(from, to)].items.iter();
        items.filter_map(|item| item.message).map(|message| self.model.eager_cost(message)).sum()
    }

    fn send(&mut self, from: u32, to: u32, mut item: Item) -> Result<(), NotSent> {
        if !self.lives(from) {
            return Ok(());
        }
        let (now, over) = (self.now, self.nodes[to as usize].over.is_some());
        let channel = self.channel(from, to);
        if channel.broken.is_some_and(|at| at <= now) {
            return Err(NotSent::Broken(format!("rank {to} is not reached")));
        }
        let needs = item.payload.as_ref().map_or(0, |payload| frames(payload.len()));
        if channel.items.len() as u64 >= channel.slots || channel.frames < needs {
            return Err(NotSent::Full);
        }
        let payload = item.payload.as_deref().unwrap_or_default();
        item.message = self.model.goes(from, to, &item.control, payload);
        if over {
            item.message.into_iter().for_each(|message| self.model.lose(message));
            return Ok(());
        }
        let place = self.place(from, to);
        let channel = &mut self.channels[place];
        channel.frames -= needs;
        item.at = (now + self.rng.below(channel.delay)).max(channel.latest);
        channel.latest = item.at;
        item.lands = Some(now + self.rng.below(1 + item.at - now));
        if item.lands == Some(now) {
            item.land(&mut self.nodes[to as usize]);
        }
        channel.items.push_back(item);
        self.tamper(from, to);
        Ok(())
    }

    /// Does to a channel what none does.
    fn tamper(&mut self, from: u32, to: u32) {
        let Some(planted) = self.planted else { return };
        if self.rng.below(20) > 0 {
            return;
        }
        let items = &mut self.channel(from, to).items;
        let count = items.len();
        match planted {
            // The greeting stays the first one.
            Planted::Overtaking if count >= 3 => {
                items.swap(count - 1, count - 2);
            }
            Planted::Loss if count >= 2 => drop(items.pop_back()),
            Planted::Damage => {
                let bytes = items.back_mut().and_then(|item| item.payload.as_mut()).and_then(|bytes| bytes.last_mut());
                bytes.into_iter().for_each(|byte| *byte ^= 1);
            }
            _ => {}
        }
    }

    fn poll(&mut self, rank: u32, net: &Net, message: &mut Message) -> bool {
        if !self.lives(rank) {
            return false;
        }
        let now = self.now;
        let is_ready =
            |from: &u32| self.channels[self.place(*from, rank)].items.front().is_some_and(|item| item.at <= now);
        let ready: Vec<u32> = (0..self.nodes.len() as u32).filter(is_ready).collect();
        if ready.is_empty() {
            return false;
        }
        let from = ready[self.rng.below(ready.len() as u64) as usize];
        let twice = self.planted == Some(Planted::Twice) && self.rng.below(50) == 0;
        let place = self.place(from, rank);
        let channel = &mut self.channels[place];
        let mut item = channel.items.pop_front().expect("it was just seen");
        if item.lands.is_some() {
            item.land(&mut self.nodes[rank as usize]);
        }
        if twice {
            let again = item.again();
            channel.frames -= again.payload.as_ref().map_or(0, |payload| frames(payload.len())).min(channel.frames);
            channel.items.push_front(again);
        }
        self.model.comes(from, rank, &item.control, item.message);
        *message = Message {
            from,
            control: item.control,
            payload: item.payload.map(|bytes| Frame { world: net.clone(), channel: (from, rank), bytes }),
            by_token: item.by_token.map(|(token, _)| (token, item.landed)),
        };
        true
    }
}

impl Item {
    fn new(control: &[u8], payload: Option<Vec<u8>>, by_token: Option<(PayloadToken, Vec<u8>)>) -> Item {
        Item { at: 0, control: control.to_vec(), payload, by_token, lands: None, landed: None, message: None }
    }

    /// Its bytes are let into memory, if that is there for them.
    fn land(&mut self, node: &mut Node) {
        self.lands = None;
        let Some((token, bytes)) = &self.by_token else { return };
        let armed = node.armed.get(&token.index).filter(|armed| armed.key == token.key);
        let armed = armed.filter(|armed| armed.range.len() >= bytes.len());
        self.landed = armed.map(|armed| {
            armed.memory.borrow_mut()[armed.range.clone()][..bytes.len()].copy_from_slice(bytes);
            bytes.len() as u64
        });
    }

    fn again(&self) -> Item {
        let (control, payload, by_token) = (self.control.clone(), self.payload.clone(), self.by_token.clone());
        Item { at: self.at, control, payload, by_token, lands: None, landed: self.landed, message: None }
    }
}

/// A member's end of the network.
pub(super) struct End {
    world: Net,
    rank: u32,
}

impl Transport for End {
    type Message = Message;
    type Frame = Frame;
    type Sender = u32;
    type Connection = Connection;
    type Buffer = Buffer;
    type Place = Place;
    type Payload = Own;
    type Room = Own;

    fn now(&self) -> Nanos {
        Nanos(self.world.world().now)
    }

    fn poll(&mut self, message: &mut Message) -> Result<bool, AccessError> {
        // The one before is dropped first, and frees its frames.
        *message = Message::default();
        let net = self.world.clone();
        Ok(self.world.world().poll(self.rank, &net, message))
    }

    fn poll_split<'m>(
        &mut self,
        message: &mut Message,
        place: impl FnOnce(u32, &[u8; HEAD_BYTES], usize) -> Option<&'m mut [u8]>,
    ) -> Result<Came, AccessError> {
        if !self.poll(message)? {
            return Ok(Came::Nothing);
        }
        if message.payload.is_none() && message.by_token.is_none() {
            if let Some((head, rest)) = message.control.split_first_chunk() {
                let memory = place(message.from, head, rest.len());
                if let Some(memory) = memory.and_then(|memory| memory.get_mut(..rest.len())) {
                    memory.copy_from_slice(rest);
                    return Ok(Came::Split);
                }
            }
        }
        Ok(Came::Message)
    }

    fn has_message(&self) -> bool {
        true
    }

    fn control(message: &Message) -> &[u8] {
        &message.control
    }

    fn from(message: &Message) -> u32 {
        message.from
    }

    fn payload_len(message: &Message) -> Option<u64> {
        message.payload.as_ref().map(Self::frame_len)
    }

    fn take_payload(message: &mut Message) -> Option<Frame> {
        message.payload.take()
    }

    fn by_token(message: &Message) -> Option<(PayloadToken, Option<u64>)> {
        message.by_token
    }

    fn frame_len(frame: &Frame) -> u64 {
        frame.bytes.len() as u64
    }

    fn read_frame(frame: &Frame, into: &mut [u8]) {
        into[..frame.bytes.len()].copy_from_slice(&frame.bytes);
    }

    fn is_own(&self, sender: &u32) -> bool {
        *sender == self.rank
    }

    fn connect(&mut self, rank: u32) -> Result<(), MpError> {
        let mut world = self.world.world();
        let at = world.now + world.rng.below(DELAY_MAX);
        world.nodes[self.rank as usize].connecting.push((at, rank));
        Ok(())
    }

    fn has_connections(&self) -> bool {
        let world = self.world.world();
        world.nodes[self.rank as usize].connecting.iter().any(|(at, _)| *at <= world.now)
    }

    fn connections(&mut self) -> Vec<(u32, Result<Connection, String>)> {
        let mut world = self.world.world();
        let now = world.now;
        let (made, rest): (Vec<_>, Vec<_>) =
            world.nodes[self.rank as usize].connecting.drain(..).partition(|(at, _)| *at <= now);
        world.nodes[self.rank as usize].connecting = rest;
        let connect = |(_, to): (u64, u32)| match world.nodes[to as usize].over {
            Some(_) => (to, Err(format!("rank {to} is not there"))),
            None => (to, Ok(Connection { world: self.world.clone(), from: self.rank, to })),
        };
        made.into_iter().map(connect).collect()
    }

    fn connect_no_more(&mut self) {
        self.world.world().nodes[self.rank as usize].connecting.clear();
    }

    fn send(
        connection: &mut Connection,
        control: &[u8],
        bytes: Bytes<'_, Place>,
        range: Range<u64>,
    ) -> Result<(), NotSent> {
        let bytes = part(bytes, range);
        let payload = (!bytes.is_empty()).then_some(bytes);
        let item = Item::new(control, payload, None);
        let &mut Connection { ref world, from, to } = connection;
        world.world().send(from, to, item)
    }

    fn send_at_once(connection: &mut Connection, head: &[u8; HEAD_BYTES], inline: &[u8]) -> bool {
        Self::send(connection, &[head, inline].concat(), Bytes::Slice(&[]), 0..0).is_ok()
    }

    fn send_by_token(
        connection: &mut Connection,
        control: &[u8],
        token: PayloadToken,
        bytes: Bytes<'_, Place>,
        range: Range<u64>,
    ) -> Result<(), NotSent> {
        let by_token = Some((token, part(bytes, range)));
        let item = Item::new(control, None, by_token);
        let &mut Connection { ref world, from, to } = connection;
        world.world().send(from, to, item)
    }

    /// Members are on two nodes, by turns.
    fn is_mapped(connection: &Connection) -> bool {
        (connection.from ^ connection.to) & 1 == 0
    }

    fn broken(connection: &Connection) -> Option<String> {
        let world = connection.world.world();
        let broken =
            world.channels[world.place(connection.from, connection.to)].broken.is_some_and(|at| at <= world.now);
        broken.then(|| format!("rank {} is not reached", connection.to))
    }

    fn arm(&self, place: Option<(&Place, Range<u64>)>) -> Result<Option<Buffer>, MpError> {
        let mut world = self.world.world();
        world.key += 1;
        let (key, scarce) = (world.key, world.rng.below(16) == 0);
        let node = &mut world.nodes[self.rank as usize];
        let most = if place.is_some() { RANGES_AT_ONCE } else { PART_BUFFERS };
        let used = node.armed.values().filter(|armed| armed.own == place.is_none() && !armed.stale).count() as u64;
        if used >= most || scarce || node.over.is_some() {
            return Ok(None);
        }
        let (memory, range, own) = match place {
            Some((place, part)) => {
                let start = place.range.start + part.start as usize;
                (place.memory.clone(), start..start + (part.end - part.start) as usize, false)
            }
            None => {
                let bytes = crate::limits::PART_BYTES_MAX as usize;
                (Rc::new(RefCell::new(vec![0; bytes])), 0..bytes, true)
            }
        };
        let index = node.armed_next;
        node.armed_next += 1;
        node.armed.insert(index, Armed { key, own, stale: false, memory: memory.clone(), range });
        let token = PayloadToken { table: ExportId::from_u64(self.rank.into()), index, key };
        Ok(Some(Buffer { world: self.world.clone(), token, rank: self.rank, memory }))
    }

    fn token(buffer: &Buffer) -> PayloadToken {
        buffer.token
    }

    fn read_buffer(buffer: &Buffer, into: &mut [u8]) -> Result<(), MpError> {
        into.copy_from_slice(&buffer.memory.borrow()[..into.len()]);
        Ok(())
    }

    fn payload(owned: &Own) -> Bytes<'_, Place> {
        match owned {
            Own::Bytes(bytes) => Bytes::Slice(bytes),
            Own::Place(place) => Bytes::Place(place),
        }
    }

    fn room(owned: &mut Own) -> Option<&mut [u8]> {
        match owned {
            Own::Bytes(bytes) => Some(bytes),
            Own::Place(_) => None,
        }
    }

    fn gone(&mut self) -> Result<Vec<(u32, Gone)>, MpError> {
        let mut world = self.world.world();
        let now = world.now;
        let news = &mut world.nodes[self.rank as usize].news;
        let (heard, rest): (Vec<_>, Vec<_>) = news.drain(..).partition(|(at, ..)| *at <= now);
        *news = rest;
        Ok(heard.into_iter().map(|(_, rank, how)| (rank, how)).collect())
    }
}

fn part(bytes: Bytes<'_, Place>, range: Range<u64>) -> Vec<u8> {
    let range = range.start as usize..range.end as usize;
    match bytes {
        Bytes::Slice(slice) => slice[range].to_vec(),
        Bytes::Place(place) => place.memory.borrow()[place.range.clone()][range].to_vec(),
    }
}
