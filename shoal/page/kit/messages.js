/** Messages as a conversation, whichever framework wrote them (LangChain, OpenAI, Anthropic, ADK); tool calls are folded, with their results. */

import { html } from '../vendor/preact.js'
import { fieldsOf } from './graphs.js'
import { Duration, Time } from './time.js'
import { Text, Tree } from './tree.js'

const ROLES = /** @type {Record<string, string>} */ ({ human: 'user', user: 'user', ai: 'assistant', AIMessageChunk: 'assistant', assistant: 'assistant', model: 'assistant', AIMessage: 'assistant', HumanMessage: 'user', SystemMessage: 'system', ToolMessage: 'tool', tool: 'tool', system: 'system', developer: 'system', function: 'tool' })
const TURNS_MAX = 200
const TEXT_MAX = 4000
const RULES_MAX = 400 // What an agent is told first is often longer than all that was said.

/** @typedef {{ id: string, name: string, arguments: any, result?: any, ms?: number, endedMs?: number }} ToolCall `ms`: when it began, in ms since 1970. */
/** @typedef {{ role: string, name?: string, text: string, calls: ToolCall[], other: any[], ms?: number }} Turn */

const TIMES = ['timestamp', 'created_at', 'createdAt', 'created', 'time', 'ts']
const [MS_MIN, MS_MAX] = [1e12, 8.64e15] // Of 2001, and the last that there is: other numbers are no dates.
const SECONDS_MAX = 1e11 // What is smaller is told in seconds, not in milliseconds.

/** When it was written, if it says so itself, in ms since 1970. @param {any} value */
function writtenMs (value) {
  for (const part of [value, value.metadata, value.additional_kwargs, value.response_metadata]) {
    for (const name of TIMES) {
      const given = part?.[name]
      const ms = typeof given === 'number' ? (given < SECONDS_MAX ? given * 1000 : given) : typeof given === 'string' ? Date.parse(given) : NaN
      if (ms > MS_MIN && ms < MS_MAX) return ms
    }
  }
}

/** One message in the one form, or null if it is none. @param {any} whole @returns {Turn | null} */
export function turn (whole) {
  const given = fieldsOf(whole)
  const value = given?.type === 'constructor' && given.kwargs ? { type: given.id?.at(-1), ...given.kwargs } : given?.data && typeof given.type === 'string' ? { ...given.data, type: given.type } : given
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return null
  const role = ROLES[value.role ?? value.type ?? value.content?.role ?? '']
  const content = value.content?.parts ?? value.content ?? value.parts
  if (role === undefined || (content === undefined && !value.tool_calls)) return null
  const found = /** @type {Turn} */ ({ role, name: value.name ?? value.author, text: '', calls: [], other: [], ms: writtenMs(value) })
  for (const part of typeof content === 'string' ? [content] : Array.isArray(content) ? content : content ? [content] : []) taken(part, found)
  for (const call of value.tool_calls ?? []) {
    found.calls.push({ id: call.id ?? '', name: call.function?.name ?? call.name ?? 'tool', arguments: unpacked(call.function?.arguments ?? call.args ?? call.arguments) })
  }
  if (role === 'tool') Object.assign(found, { name: value.tool_call_id ?? value.name })
  return found
}

/** @param {any} part @param {Turn} found */
function taken (part, found) {
  if (typeof part === 'string') found.text += part
  else if (typeof part?.text === 'string') found.text += (found.text ? '\n' : '') + part.text
  else if (part?.type === 'tool_use') found.calls.push({ id: part.id, name: part.name, arguments: part.input })
  else if (part?.function_call ?? part?.functionCall) found.calls.push({ id: (part.function_call ?? part.functionCall).id ?? '', name: (part.function_call ?? part.functionCall).name, arguments: (part.function_call ?? part.functionCall).args })
  else found.other.push(part)
}

/** @param {any} text */
function unpacked (text) {
  if (typeof text !== 'string') return text
  try { return JSON.parse(text) } catch { return text }
}

/** The turns, with the results of tools at their calls; null if it is no list of messages. @param {any} value @returns {Turn[] | null} */
export function turns (value) {
  if (!Array.isArray(value) || value.length === 0) return null
  /** @type {Turn[]} */
  const found = []
  const calls = new Map()
  for (const each of value) {
    const one = turn(each)
    if (one === null) return null
    const call = one.role === 'tool' ? calls.get(one.name) : undefined
    if (call) { Object.assign(call, { result: one.text || one.other, endedMs: one.ms }); continue }
    const results = one.other.filter((part) => part?.type === 'tool_result' && calls.has(part.tool_use_id))
    for (const part of results) Object.assign(calls.get(part.tool_use_id), { result: part.content, endedMs: one.ms })
    if (results.length > 0 && results.length === one.other.length && !one.text) continue
    for (const made of one.calls) calls.set(made.id, Object.assign(made, { ms: one.ms }))
    found.push(one)
  }
  return found
}

/** The channels of a state that hold messages. @param {Record<string, any>} state */
export const conversations = (state) => Object.entries(state ?? {}).filter(([, value]) => turns(value) !== null)

/** When a tool was called and how long it took: as its step tells, whose key has the call's id as a part, or else as its messages do. @param {{ call: ToolCall, steps: any[] }} props */
function Called ({ call, steps }) {
  const step = call.id ? steps.find(({ id }) => id.split(/[.:/ ]/).includes(call.id)) : undefined
  const [ms, endedMs] = step ? [step.wall_ms, step.ended_ms] : [call.ms, call.endedMs]
  if (!ms) return null
  return html`<span class="when quiet">${endedMs >= ms && html`<${Duration} ms=${endedMs - ms} /> at `}<${Time} ms=${ms} exact /></span>`
}

/** @param {{ value: any, steps?: any[] }} props `steps`: of the thread. */
export function Messages ({ value, steps = [] }) {
  const all = turns(value)
  if (all === null) return html`<${Tree} value=${value} />`
  const left = Math.max(0, all.length - TURNS_MAX)
  return html`<ol class="messages">${left > 0 && html`<li class="quiet">${left} earlier turns; the tree has them</li>`}${all.slice(left).map((one) => html`<li class=${one.role}>
    <span class="role">${one.name && one.role !== 'tool' ? one.name : one.role}${one.ms && html` <${Time} ms=${one.ms} />`}</span>
    <div class="said">${one.text && html`<p><${Text} text=${one.text} max=${one.role === 'system' ? RULES_MAX : TEXT_MAX} /></p>`}
      ${one.calls.map((call) => html`<details class="call"><summary><${Called} call=${call} steps=${steps} /><code>${call.name}</code> <span class="quiet">${brief(call.arguments)}</span>${call.result === undefined && html` <span class="quiet">no result</span>`}</summary>
        <${Tree} value=${{ arguments: call.arguments ?? null, ...(call.result === undefined ? {} : { result: call.result }) }} /></details>`)}
      ${one.other.length > 0 && html`<${Tree} value=${one.other} />`}</div></li>`)}</ol>`
}

/** One message in a line: who said it, and its beginning. @param {any} value */
export function briefly (value) {
  const one = turn(value)
  return one === null ? brief(value) : `${one.role}  ${brief(one.text || one.calls.map(({ name }) => name).join(', ') || one.other)}`
}

/** @param {any} value */
export function brief (value) {
  const text = typeof value === 'string' ? value : JSON.stringify(value) ?? ''
  return text.length > 80 ? text.slice(0, 80) + '…' : text
}
