// Reads the version of a package installed beside this file.

import { readFileSync } from 'node:fs'

export function version(name) {
  const file = new URL(`node_modules/${name}/package.json`, import.meta.url)
  return JSON.parse(readFileSync(file, 'utf8')).version
}
