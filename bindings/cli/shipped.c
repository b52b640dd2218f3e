/* Where recipes and guides are: in an installation, or beside a build tree. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Finds the first of n folders, relative to the program's own, that is there. */
static bool find_beside(const char *const *places, size_t n, char path[PATH_MAX])
{
  char self[PATH_MAX], folder[PATH_MAX + 64];
  ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
  self[got > 0 ? got : 0] = 0;
  char *slash = strrchr(self, '/');
  if (!slash) return false;
  *slash = 0;
  for (size_t i = 0; i < n; i++) {
    snprintf(folder, sizeof folder, "%s/%s", self, places[i]);
    if (realpath(folder, path)) return true;
  }
  return false;
}

static bool find_recipes(char path[PATH_MAX])
{
  static const char *const places[] = {"../share/tide/recipes", "../recipes", "../../recipes"};
  return find_beside(places, sizeof places / sizeof *places, path);
}

static bool find_guides(char path[PATH_MAX])
{
  static const char *const places[] = {"../share/doc/lua-tide/lua/guide",
    "../share/doc/tide/lua/guide", "../lua/guide", "../../lua/guide"};
  return find_beside(places, sizeof places / sizeof *places, path);
}

void cli_print_shipped(void)
{
  char path[PATH_MAX];
  if (find_recipes(path))
    printf("\nRecipes: %s\n         tide run FOLDER/pretrain.lua --help; tide in C, Python, nginx "
           "and Neovim is below embed\n", path);
  if (find_guides(path))
    printf("Guides:  %s\n         loop.md, ranks.md, prompt.md, embed.md, ...\n", path);
}

void cli_suggest_recipe(const char *wanted)
{
  char folder[PATH_MAX], path[PATH_MAX + NAME_MAX + 2];
  const char *slash = strrchr(wanted, '/');
  if (!find_recipes(folder)) return;
  snprintf(path, sizeof path, "%s/%.*s", folder, NAME_MAX, slash ? slash + 1 : wanted);
  if (access(path, R_OK) == 0) fprintf(stderr, "; did you mean %s?", path);
  else fprintf(stderr, "; the recipes of tide are in %s", folder);
}
