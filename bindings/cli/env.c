/* Warns of environment variables TIDE_... that are misspelt parameters, which would be ignored
 * silently. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

extern char **environ;

enum { LONGEST = 40 };

/* Returns the least number of insertions, deletions and substitutions that turn a into b, ignoring
 * case. */
static int distance(const char *a, const char *b)
{
  int row[LONGEST + 1], na = (int)strlen(a), nb = (int)strlen(b);
  if (na > LONGEST || nb > LONGEST) return LONGEST;
  for (int j = 0; j <= nb; j++) row[j] = j;
  for (int i = 1; i <= na; i++) {
    int corner = row[0];
    row[0] = i;
    for (int j = 1; j <= nb; j++) {
      bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
      int replaced = corner + !same;
      corner = row[j];
      int least = (corner < row[j - 1] ? corner : row[j - 1]) + 1;
      row[j] = replaced < least ? replaced : least;
    }
  }
  return row[nb];
}

static bool is_upper(const char *name)
{
  for (; *name; name++)
    if (islower((unsigned char)*name)) return false;
  return true;
}

/* Returns the parameter that a name probably means; NULL if it is one, or close to none. */
static const char *meant(const char *name)
{
  const char *near = NULL;
  for (int i = 0; i < tide_param_count(); i++) {
    int d = distance(name, tide_param_name(i));
    if (d == 0) return is_upper(name) ? NULL : tide_param_name(i);
    if (d <= (strlen(name) > 4 ? 2 : 1)) near = tide_param_name(i);
  }
  return near;
}

void cli_check_environment(void)
{
  for (char **e = environ; e && *e; e++) {
    char name[LONGEST + 1];
    size_t n = strcspn(*e, "=");
    if (strncmp(*e, "TIDE_", 5) != 0 || n - 5 > LONGEST) continue;
    snprintf(name, sizeof name, "%.*s", (int)(n - 5), *e + 5);
    const char *param = meant(name);
    if (!param) continue;
    fprintf(stderr, "tide: warning: TIDE_%s is not read; did you mean TIDE_", name);
    for (; *param; param++) fputc(toupper((unsigned char)*param), stderr);
    fputs("?\n", stderr);
  }
}
