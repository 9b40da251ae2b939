//! `vmmc top`: what the nodes of this user do, live.
//!
//! Invariant: it only reads; a node that goes away disappears from the view, one that comes
//! appears.

mod draw;
mod sample;
mod screen;

pub(crate) use screen::Sort;

use crate::args::Top;
use crate::failure::Failure;
use ratatui::crossterm::event::{Event, poll, read};
use sample::{Sampler, View};
use screen::Screen;
use std::time::{Duration, Instant};

/// Size of the text that `--once` prints.
const TEXT_SIZE: (u16, u16) = (132, 60);

/// Runs the command.
pub(crate) fn run(top: &Top) -> Result<(), Failure> {
    let mut sampler = Sampler::new(top.name.clone());
    let interval = Duration::from_millis(top.interval_ms);
    sampler.sample()?;
    if top.once {
        std::thread::sleep(interval);
        let view = sampler.sample()?;
        return crate::output(
            &draw::text(&view, &Screen::text(top.sort, top.invert), TEXT_SIZE).map_err(Failure::new)?,
        );
    }
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, &mut sampler, interval, Screen::live(top.sort, top.invert));
    ratatui::restore();
    result
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    sampler: &mut Sampler,
    interval: Duration,
    mut screen: Screen,
) -> Result<(), Failure> {
    let mut view = View::default();
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            view = sampler.sample()?;
            next = Instant::now() + interval;
        }
        screen.chosen = screen.chosen.min(view.nodes.len().saturating_sub(1));
        terminal.draw(|frame| draw::draw(frame, &view, &screen))?;
        if !poll(next.saturating_duration_since(Instant::now()))? {
            continue;
        }
        let Event::Key(key) = read()? else { continue };
        if screen.press(key, view.nodes.len()) {
            return Ok(());
        }
    }
}
